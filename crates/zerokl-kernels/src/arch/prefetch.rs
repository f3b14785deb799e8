//! Telling the memory system what will soon be read: a hint, so it moves no bit.

/// Starts to bring these numbers near. Pages of the cache lie anywhere, so the hardware can't guess the next one.
#[inline(always)]
pub fn prefetch(from: &[f32]) {
    for line in from.chunks(16) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing; it is allowed on any address.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.as_ptr().cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
