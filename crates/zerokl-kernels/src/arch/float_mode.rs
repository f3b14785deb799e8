//! The float control word: round to nearest even, subnormals kept, no traps, whatever the process set before.
//!
//! Some libraries switch on "flush to zero" when they are loaded, for the whole thread. It would change our bits.

/// Runs `f` with the contract's float mode, and puts the caller's mode back, also if `f` panics.
pub fn strict_floats<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(exchange(STRICT));
    f()
}

struct Restore(Mode);

impl Drop for Restore {
    fn drop(&mut self) {
        exchange(self.0);
    }
}

#[cfg(target_arch = "x86_64")]
type Mode = u32;

/// MXCSR: all exceptions masked, nearest even, neither FTZ nor DAZ.
#[cfg(target_arch = "x86_64")]
const STRICT: Mode = 0x1f80;

#[cfg(target_arch = "x86_64")]
fn exchange(new: Mode) -> Mode {
    let mut old: Mode = 0;
    // SAFETY: both instructions touch only the four bytes they are given and the float control word. The new value is
    // STRICT or one that was read before, so no reserved bit is set. Float code cannot move across: the asm may touch
    // memory, and every kernel reads its inputs from memory that outlives this call.
    unsafe {
        std::arch::asm!(
            "stmxcsr [{old}]",
            "ldmxcsr [{new}]",
            old = in(reg) &raw mut old,
            new = in(reg) &raw const new,
            options(nostack),
        );
    }
    old
}

/// For tests: as a library that wants speed at any price would leave the thread.
#[cfg(all(test, target_arch = "x86_64"))]
pub fn with_flush_to_zero<R>(f: impl FnOnce() -> R) -> R {
    let _restore = Restore(exchange(STRICT | 0x8040));
    f()
}

#[cfg(target_arch = "aarch64")]
type Mode = u64;

/// FPCR: nearest even, no flush to zero, no traps, no default NaN.
#[cfg(target_arch = "aarch64")]
const STRICT: Mode = 0;

#[cfg(target_arch = "aarch64")]
fn exchange(new: Mode) -> Mode {
    let old: Mode;
    // SAFETY: FPCR is readable and writable from user code; the new value is zero or one that was read before.
    unsafe {
        std::arch::asm!("mrs {old}, fpcr", "msr fpcr, {new}", old = out(reg) old, new = in(reg) new, options(nostack));
    }
    old
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the float control word of this architecture is not known; see arch/float_mode.rs");
