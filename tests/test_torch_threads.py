# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from test_config import FLASH

import tiny_checkpoints as tiny
from dsv4spec.models import DeepseekV4Config
from dsv4spec.placement import torch_threads

SMALL, FULL = DeepseekV4Config.from_dict(tiny.raw_config()), DeepseekV4Config.from_dict(FLASH)


@pytest.mark.parametrize("config,device,inside", [(SMALL, "cpu", 1), (FULL, "cpu", 2), (SMALL, "meta", 2)])
def test_one_thread_for_small_models_and_restored(config, device, inside):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), torch_threads(config, torch.device(device)):
            assert torch.get_num_threads() == inside
            raise KeyError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
