// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ascend_emu {
void forget_global_memory();  // what earlier launches did: they are complete
void check_clean();           // at the end of a core: nothing may be left in its data cache
}
