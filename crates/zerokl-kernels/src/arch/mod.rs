//! One virtual vector of 16 f32 lanes, with a body per instruction set and the same bits on all of them.
//!
//! ```text
//! Kernel::run::<L: Lanes>   written once, #[inline(always)], safe
//!     ▲ instantiated by     Isa::run(kernel): scalar::Scalar | avx2::Avx2 | avx512::Avx512 | neon::Neon
//! ```
//!
//! A lane operation is one IEEE operation, rounded to nearest even, on every instruction set. Nothing here may be
//! approximate (`rcp`, `rsqrt`), reassociated, or flushed to zero. All `unsafe` of the crate's arithmetic is in here.

mod float_mode;
mod memory;
mod prefetch;
mod scalar;
mod transpose;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_blocks;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

pub use float_mode::strict_floats;
pub use memory::{Room, Weights, trim};
pub use prefetch::{prefetch_at, prefetch_line};
pub use scalar::widen_f16;
pub use transpose::transpose_4x4;

/// The virtual width. Reductions keep this many lanes by index mod 16, whatever the machine has.
pub const LANES: usize = 16;

/// The bits of a cache line.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Line(pub [u32; LANES]);

/// Sixteen f32 lanes. Implementations use nothing wider than what their instruction set was detected to have.
///
/// Methods must be `#[inline(always)]`: only then do they become instructions inside `Isa::run`.
pub trait Lanes: Copy {
    /// A yes or no per lane, from a comparison.
    type Mask: Copy;
    /// How many vector registers of the machine one value fills: what a tile of accumulators may be sized by.
    const REGISTERS: usize;

    /// Runs a kernel as a function of its own, with these lanes: what many bodies share is compiled once.
    fn call<K: Kernel>(kernel: K) -> K::Output;

    fn splat(value: f32) -> Self;
    fn load(from: &[f32; LANES]) -> Self;
    fn store(self, to: &mut [f32; LANES]);
    /// The lanes with these bit patterns.
    fn load_bits(from: &[u32; LANES]) -> Self;
    /// f16 bit patterns, widened exactly (subnormals too; a signalling NaN becomes quiet).
    fn load_f16(from: &[u16; LANES]) -> Self;
    /// bf16 bit patterns, widened exactly.
    fn load_bf16(from: &[u16; LANES]) -> Self;
    /// Bytes as the low ones of the bit patterns, the others zero.
    fn load_bytes(from: &[u8; LANES]) -> Self;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    fn sqrt(self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn fma(self, factor: Self, addend: Self) -> Self;
    /// `if self > other { self } else { other }`: a NaN in either, or two zeros, gives `other`.
    fn max(self, other: Self) -> Self;
    /// `if self < other { self } else { other }`: a NaN in either, or two zeros, gives `other`.
    fn min(self, other: Self) -> Self;

    fn less_than(self, other: Self) -> Self::Mask;
    fn equals(self, other: Self) -> Self::Mask;
    /// True in the first `count` lanes (all, if `count` is 16 or more).
    fn first_lanes(count: usize) -> Self::Mask;
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// The bit pattern of each lane as an integer: the way to exponents and signs.
    fn and_bits(self, bits: u32) -> Self;
    fn or_bits(self, bits: u32) -> Self;
    fn xor_bits(self, bits: u32) -> Self;
    /// Wrapping integer sum of the bit patterns.
    fn add_bits(self, other: Self) -> Self;
    /// Wrapping integer difference of the bit patterns.
    fn sub_bits(self, other: Self) -> Self;
    fn shift_left<const N: i32>(self) -> Self;
    /// Arithmetic: the sign bit is repeated.
    fn shift_right<const N: i32>(self) -> Self;
    /// Zeros come in from the left; `count` is below 32.
    fn shift_right_by(self, count: u32) -> Self;
    /// The bit pattern, read as an i32, as a float (rounded to nearest even).
    fn integer_to_float(self) -> Self;
    /// Cut to an i32's bit pattern; -2^31 for what has no place there (a NaN too).
    fn float_to_integer(self) -> Self;
    /// `table[bits & 15]`, lane by lane.
    fn look_up(self, table: Self) -> Self;
    /// Integer lanes: self + the sum over the four bytes of `unsigned[b] * signed[b]`, exactly (and wrapping).
    fn dot_bytes(self, unsigned: Self, signed: Self) -> Self;

    /// Whether `bf16_chains` is there: a body by hand for what the compiler does badly.
    const BF16_CHAINS: bool = false;
    /// acc[r][p] = fma(weights of panel p, x[k][row + r], acc[r][p]) for rising k, of 4 rows and 3 panels. A line has two k:
    /// the even one in the low halves, as bf16. `ask`: what to ask for ahead, line by line, in each of two walks.
    #[inline(always)]
    fn bf16_chains<const G: usize>(
        _panels: [&[Line]; 3],
        _x: &[[f32; G]],
        _row: usize,
        _ask: [[*const Line; 2]; 2],
        _acc: &mut [[f32; LANES]; 12],
    ) {
        unreachable!("not without BF16_CHAINS");
    }

    /// The fixed tree: (i, i+8), (i, i+4), (i, i+2), (i, i+1).
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = self.to_array();
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        lanes[0]
    }

    /// The largest lane, by the same tree and the `max` of this trait.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = self.to_array();
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                let (a, b) = (lanes[i], lanes[i + half]);
                lanes[i] = if a > b { a } else { b };
            }
        }
        lanes[0]
    }

    #[inline(always)]
    fn zero() -> Self {
        Self::splat(0.0)
    }

    #[inline(always)]
    fn splat_bits(bits: u32) -> Self {
        Self::splat(f32::from_bits(bits))
    }

    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes
    }

    #[inline(always)]
    fn neg(self) -> Self {
        self.xor_bits(0x8000_0000)
    }

    #[inline(always)]
    fn abs(self) -> Self {
        self.and_bits(0x7fff_ffff)
    }

    /// The first lanes from a slice of at most 16, the others zero.
    #[inline(always)]
    fn load_first(from: &[f32]) -> Self {
        if let Ok(whole) = from.try_into() {
            return Self::load(whole);
        }
        let mut lanes = [0.0; LANES];
        lanes[..from.len()].copy_from_slice(from);
        Self::load(&lanes)
    }

    /// Writes the first `to.len()` lanes, at most 16.
    #[inline(always)]
    fn store_first(self, to: &mut [f32]) {
        match <&mut [f32; LANES]>::try_from(&mut *to) {
            Ok(whole) => self.store(whole),
            Err(_) => to.copy_from_slice(&self.to_array()[..to.len()]),
        }
    }
}

/// A computation over lanes: its inputs are fields, and `run` is written once for every instruction set.
pub trait Kernel {
    type Output;
    /// Whether it is worth a body of its own where the machine has an instruction for `Lanes::dot_bytes`.
    const DOTS: bool = false;
    /// Mark it `#[inline(always)]`, and all that it calls with lanes too. It must not start parallel work (a closure
    /// handed to the pool would be compiled for the plain instruction set): parallel outside, lanes inside.
    fn run<L: Lanes>(self) -> Self::Output;
}

/// The instruction sets. Which one runs moves no bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    Scalar,
    Avx2(Avx2Found),
    Avx512(Avx512Found),
    /// Part of the architecture: nothing to detect.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// Proof of detection: its only constructor looks at the machine, so an `Isa` that exists can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx2Found(());

/// Proof of detection, as `Avx2Found`; true: with VNNI, the dot products of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Avx512Found(bool);

impl Isa {
    /// All that this machine can run, the best first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let always = [
            #[cfg(target_arch = "aarch64")]
            Isa::Neon,
            Isa::Scalar,
        ];
        [detect_avx512(), detect_avx2()].into_iter().flatten().chain(always)
    }

    pub fn best() -> Isa {
        Isa::available().next().unwrap_or(Isa::Scalar)
    }

    pub fn named(name: &str) -> Option<Isa> {
        Isa::available().find(|isa| isa.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2(_) => "avx2",
            Isa::Avx512(_) => "avx512",
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => "neon",
        }
    }

    /// The same without what not every machine of the kind has: for tests of the body that such a machine runs.
    pub fn plain(self) -> Isa {
        match self {
            Isa::Avx512(_) => Isa::Avx512(Avx512Found(false)),
            isa => isa,
        }
    }

    /// Runs a kernel's body with this instruction set's lanes.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Isa::Scalar => kernel.run::<scalar::Scalar>(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an Avx2Found exists only where the features were detected.
            Isa::Avx2(_) => unsafe { avx2::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an Avx512Found exists only where the features were detected, and is true only where VNNI was.
            Isa::Avx512(found) => unsafe {
                if K::DOTS && found.0 { avx512::run_dots(kernel) } else { avx512::run(kernel) }
            },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::run(kernel),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2(_) | Isa::Avx512(_) => unreachable!("never detected on this architecture"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect_avx2() -> Option<Isa> {
    let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
    found.then_some(Isa::Avx2(Avx2Found(())))
}

#[cfg(target_arch = "x86_64")]
fn detect_avx512() -> Option<Isa> {
    let found = detect_avx2().is_some()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq");
    found.then_some(Isa::Avx512(Avx512Found(is_x86_feature_detected!("avx512vnni"))))
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_avx2() -> Option<Isa> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn detect_avx512() -> Option<Isa> {
    None
}

#[cfg(test)]
mod tests;
