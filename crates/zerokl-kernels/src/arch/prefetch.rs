//! Telling the memory system what will soon be read: a hint, so it moves no bit.

/// Starts to bring one cache line near, wherever it is: an address that isn't there is nothing.
#[inline(always)]
pub fn prefetch_line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing; it is allowed on any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Starts to bring these numbers near. Pages of the cache lie anywhere, so the hardware can't guess the next one.
#[inline(always)]
pub fn prefetch<T>(from: &[T]) {
    from.chunks(64 / size_of::<T>()).for_each(|line| prefetch_line(line.as_ptr()));
}
