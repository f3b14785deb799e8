//! Telling the memory system what will soon be read: a hint, so it moves no bit.

/// Starts to bring one cache line near, wherever it is: an address that isn't there is nothing.
#[inline(always)]
pub fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing; it is allowed on any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// The same of some bytes. A call, because unrolled into every body it took minutes to compile.
#[inline(never)]
pub fn prefetch_at<T>(at: *const T, bytes: usize) {
    (0..bytes).step_by(64).for_each(|line| prefetch_line(at.cast::<u8>().wrapping_add(line)));
}
