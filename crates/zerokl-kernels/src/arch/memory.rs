//! Memory for weights: slices side by side in blocks that ask for huge pages.
//!
//! Streaming a weight from 4 KB pages misses the TLB on every page, and the hardware's prefetchers stop there: on one
//! thread `linear` read SmolLM2's weights at 23 GB/s, from 2 MB pages at 28. Most matrices of a small model are smaller
//! than a huge page, so they must share one; hence blocks.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use crate::cpu::Cpu;

const HUGE_PAGE: usize = 2 << 20;
/// Addresses, not memory: what is never written takes none. With 32 MB the ends of a small model's blocks took 9 MB.
const BLOCK: usize = 128 << 20;

/// An immutable slice of plain numbers. Its block goes back to the system with the last slice in it.
pub struct Weights<T> {
    first: NonNull<T>,
    length: usize,
    _block: Arc<Block>,
}

impl<T: Copy + Send + Sync + 'static> Weights<T> {
    /// A slice of `length` elements, made in chunks of `chunk` by all threads: `fill(index, elements)` gets each chunk
    /// once, all `value`, still in the cache of the core that will write what it should be.
    ///
    /// So a page is first touched, and cleared by the system, by whoever fills it: one thread writing `value` everywhere
    /// took a third of the time to load a model.
    pub fn new(cpu: Cpu, length: usize, chunk: usize, value: T, fill: impl Fn(usize, &mut [T]) + Sync) -> Self {
        let layout = Layout::array::<T>(length).expect("a weight fits in the address space");
        let (block, start) = reserve(layout);
        let first = start.cast::<T>();
        // SAFETY: `reserve` gave these bytes, aligned for T, to this call only; they may be uninitialised.
        let blank = unsafe { std::slice::from_raw_parts_mut(first.cast::<MaybeUninit<T>>().as_ptr(), length) };
        cpu.for_chunks(blank, chunk, |index, elements| {
            elements.fill(MaybeUninit::new(value));
            // SAFETY: all of them have just been written, and `MaybeUninit<T>` lies in memory as T does.
            fill(index, unsafe { &mut *(std::ptr::from_mut(elements) as *mut [T]) });
        });
        Weights { first, length, _block: block }
    }
}

impl<T> Deref for Weights<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` wrote `length` elements from `first` on, as chunks cover a slice, `_block` keeps them, and nobody writes any more.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.length) }
    }
}

// SAFETY: an immutable slice of T, kept by an Arc.
unsafe impl<T: Send + Sync> Send for Weights<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Weights<T> {}

/// Room for numbers that lie far from each other, kept between uses: from 4 KB pages each row would be found anew.
#[derive(Default)]
pub struct Room {
    block: Option<Block>,
}

impl Room {
    /// Numbers of earlier uses, or zeros.
    pub fn lend(&mut self, length: usize) -> &mut [f32] {
        let bytes = length * size_of::<f32>();
        let block = match self.block.take() {
            Some(block) if block.layout.size() >= bytes => block,
            too_small => {
                drop(too_small);
                let block = Block::new(bytes.max(1));
                // SAFETY: all bytes of an allocation of our own.
                unsafe { block.start.write_bytes(0, block.layout.size()) };
                block
            }
        };
        let first = self.block.insert(block).start.cast::<f32>();
        // SAFETY: the block has so many bytes, all written, aligned for more than f32; `&mut self` lends them once.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), length) }
    }
}

struct Block {
    start: NonNull<u8>,
    layout: Layout,
}

impl Block {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.next_multiple_of(HUGE_PAGE), HUGE_PAGE).expect("a sensible size");
        // SAFETY: the size is not zero, as `reserve` asks for at least one byte.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        prefer_huge_pages(start, layout.size());
        Block { start, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and the last slice in it is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: a block is only an address range; slices in it never overlap, and it is freed once.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// The block that is being filled, and how much of it is taken.
static FILLING: Mutex<(Weak<Block>, usize)> = Mutex::new((Weak::new(), 0));

/// Bytes of nobody else's: in the block that is being filled if they fit, else in a new one.
fn reserve(layout: Layout) -> (Arc<Block>, NonNull<u8>) {
    let bytes = layout.size().max(1);
    let mut filling = FILLING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let start = filling.1.next_multiple_of(layout.align().max(64));
    if let Some(block) = filling.0.upgrade()
        && start + bytes <= block.layout.size()
    {
        filling.1 = start + bytes;
        // SAFETY: inside the block, as just checked.
        let first = unsafe { block.start.add(start) };
        return (block, first);
    }
    let block = Arc::new(Block::new(bytes.max(BLOCK)));
    *filling = (Arc::downgrade(&block), bytes);
    let first = block.start;
    (block, first)
}

/// A wish: refused or unknown, the pages are small and all is well.
fn prefer_huge_pages(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    {
        const MADV_HUGEPAGE: i32 = 14;
        unsafe extern "C" {
            fn madvise(address: *mut u8, length: usize, advice: i32) -> i32;
        }
        // SAFETY: whole pages of our own allocation; this advice changes no contents.
        unsafe { madvise(start.as_ptr(), bytes, MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

/// Gives freed memory back to the system that the C library keeps for later: a tokenizer's file leaves 8 MB of holes.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            fn malloc_trim(kept: usize) -> i32;
        }
        // SAFETY: callable at any time from any thread; it touches free memory only.
        unsafe { malloc_trim(0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_many_sizes_do_not_overlap_and_outlive_each_other() {
        let sizes = [0, 1, 3, 1000, BLOCK / 32, 7, BLOCK / 8, 5, BLOCK / 4, 2];
        let mut slices: Vec<Weights<u32>> = Vec::new();
        for (i, size) in sizes.into_iter().enumerate() {
            slices.push(Weights::new(Cpu::detect(), size, 1000, 0, |_, slice| slice.fill(i as u32)));
        }
        for i in (0..sizes.len()).rev().step_by(2) {
            assert!(slices[i].iter().all(|x| *x == i as u32) && slices[i].len() == sizes[i]);
            slices.remove(i);
        }
        assert!(slices.iter().zip([0, 2, 4, 6, 8]).all(|(slice, i)| slice.iter().all(|x| *x == i)));
    }

    #[test]
    fn room_keeps_its_numbers_until_more_are_wanted() {
        let mut room = Room::default();
        assert!(room.lend(3).iter().all(|x| *x == 0.0));
        room.lend(5).fill(1.0);
        assert_eq!(room.lend(6), [1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
        assert!(room.lend(HUGE_PAGE).iter().all(|x| *x == 0.0) && room.lend(0).is_empty());
    }

    #[test]
    fn slices_start_at_cache_lines() {
        let slices = [1, 5, 64].map(|size| Weights::new(Cpu::detect(), size, 1, 0_u16, |_, _| ()));
        assert!(slices.iter().all(|slice| (slice.as_ptr() as usize).is_multiple_of(64)));
    }
}
