//! Memory and operations of a run, before it begins.

use candle_core::Device;

use crate::engine::{self, PassProfile};
use crate::kinds::Kinds;
use crate::memory;
use crate::plan::{self, Costs, Memory};
use crate::session::Prepared;
use crate::units::Bytes;

/// Stacks and small blocks of a process.
const HEAP: Bytes = Bytes(4 << 20);
/// Largest model that is built to profile a pass.
const TRIED: Bytes = Bytes(1 << 30);

/// Memory and operations that the run needs: measured on a small batch, or estimated for a model
/// that is too large to be tried. Unknown for a model that cannot be built or run here, which
/// training will report.
pub fn costs(prepared: &Prepared, kinds: &Kinds) -> Costs {
    let plan = &prepared.plan;
    let least = Memory::of(plan, None);
    // A frozen base, as under LoRA, is listed as buffers.
    let held = Bytes(least.weights.0 + least.buffers.0);
    if held > TRIED {
        let estimated = kinds.models.describe(&plan.model);
        let estimated = estimated.ok().and_then(|facts| plan::estimate_pass(plan, &facts));
        if let Some(pass) = estimated {
            let (memory, flops) = (Memory::of(plan, Some(pass.activations)), Some(pass.flops));
            return Costs { memory, flops, is_estimated: true };
        }
    }
    let profiled = profiled(prepared, held, kinds);
    let mut memory = Memory::of(plan, profiled.and_then(|pass| pass.activations));
    if let Some(program) = memory::of_program().filter(|_| profiled.is_some()) {
        memory.base = Bytes(program.0 + HEAP.0);
    }
    Costs { memory, flops: profiled.map(|pass| pass.flops), is_estimated: false }
}

/// Profile of a pass; `None` if it cannot be tried: the values of the model, which are `held` while
/// it is built, leave no room for their gradients and for others on this machine.
fn profiled(prepared: &Prepared, held: Bytes, kinds: &Kinds) -> Option<PassProfile> {
    let plan = &prepared.plan;
    if prepared.facts.memory.is_some_and(|memory| Bytes(4 * held.0) > memory) {
        return None;
    }
    let components = kinds.components(plan, &Device::Cpu).ok()?;
    engine::profile_pass(plan, &components).ok()
}
