//! The allocator of programs that hold this server: mimalloc for what is small.
//!
//! A request makes some 200 small allocations, which took a quarter of its instructions with the C library's allocator.
//! Large ones stay with the system's, so the kernels, which share the Python module, find their memory as before.

use std::alloc::{GlobalAlloc, Layout, System};

use mimalloc::MiMalloc;

/// Bytes.
const SMALL: usize = 8 * 1024;

/// Which of the two has an allocation is told by its size alone.
pub struct Allocator;

impl Allocator {
    /// Gives what is free back to the system, of threads that have ended too. The system's own is not its concern.
    pub fn collect() {
        unsafe extern "C" {
            fn mi_collect(force: bool);
        }
        // SAFETY: mimalloc's, which is linked in; callable at any time from any thread.
        unsafe { mi_collect(true) };
    }
}

fn is_small(size: usize) -> bool {
    size <= SMALL
}

// SAFETY: each call goes to the allocator that its layout's size names, and a block whose size crosses the border is
// copied by hand, so a block is always given back to the allocator that it came from.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of either allocator.
        unsafe { if is_small(layout.size()) { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { if is_small(layout.size()) { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the layout is that of the allocation, so this is the allocator that made it.
        unsafe { if is_small(layout.size()) { MiMalloc.dealloc(block, layout) } else { System.dealloc(block, layout) } }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above where both sizes belong to one allocator. Else the new block is another one, and both hold
        // the smaller of the two sizes.
        unsafe {
            match (is_small(layout.size()), is_small(size)) {
                (true, true) => MiMalloc.realloc(block, layout, size),
                (false, false) => System.realloc(block, layout, size),
                _ => {
                    let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                    if !moved.is_null() {
                        std::ptr::copy_nonoverlapping(block, moved, size.min(layout.size()));
                        self.dealloc(block, layout);
                    }
                    moved
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_its_bytes_across_the_border_and_back() {
        let layout = |size| Layout::from_size_align(size, 16).expect("a layout");
        // SAFETY: each block is written within its size, and given back once with the layout it has then.
        unsafe {
            let mut block = Allocator.alloc(layout(100));
            (0..100).for_each(|place| block.add(place).write(place as u8));
            let mut size = 100;
            for next in [SMALL, SMALL + 1, 4 * SMALL, SMALL, 100] {
                block = Allocator.realloc(block, layout(size), next);
                assert_eq!(block.align_offset(16), 0);
                size = next;
                assert!((0..100).all(|place| *block.add(place) == place as u8), "{size}");
            }
            Allocator.dealloc(block, layout(size));
            let zeroed = Allocator.alloc_zeroed(layout(SMALL + 1));
            assert!((0..=SMALL).all(|place| *zeroed.add(place) == 0));
            Allocator.dealloc(zeroed, layout(SMALL + 1));
        }
    }
}
