//! The golden vectors that both sides must read and write back byte for byte, and what happens to bytes that are none.

use std::path::Path;
use std::sync::LazyLock;

use proptest::prelude::*;
use zerokl_wire::{Columns, Side, ToEngine, ToFrontend, decode, decode_step, encode, encode_step};

static VECTORS: LazyLock<Vec<(String, Vec<u8>)>> = LazyLock::new(read_vectors);

fn vectors() -> Vec<(String, Vec<u8>)> {
    VECTORS.clone()
}

fn read_vectors() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/wire");
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("the vectors are in the repository")
        .map(|entry| entry.expect("readable").path())
        .map(|path| (path.file_stem().unwrap().to_string_lossy().into_owned(), read_vector(&path)))
        .collect();
    found.sort();
    assert!(found.len() >= 12);
    found
}

fn read_vector(path: &Path) -> Vec<u8> {
    let text = std::fs::read_to_string(path).expect("readable");
    let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
}

fn written_back<M: Side>(raw: &[u8]) -> Vec<u8> {
    let frame = decode::<M>(raw).expect("a good frame").expect("a whole frame");
    assert_eq!(frame.size, raw.len());
    encode(&frame.message, &Columns { bytes: frame.columns.to_vec() }).expect("short enough")
}

#[test]
fn each_golden_vector_is_read_and_written_back_byte_for_byte() {
    for (name, raw) in vectors() {
        let again =
            if ToEngine::knows(raw[4]) { written_back::<ToEngine>(&raw) } else { written_back::<ToFrontend>(&raw) };
        assert_eq!(again, raw, "{name}");
    }
}

#[test]
fn records_of_a_golden_step_are_written_back_byte_for_byte() {
    for (name, raw) in vectors().into_iter().filter(|(name, _)| name.starts_with("step")) {
        let frame = decode::<ToFrontend>(&raw).unwrap().unwrap();
        let ToFrontend::Step(step) = frame.message else { panic!("{name} is no step") };
        let number = step.step;
        let records = decode_step(step, frame.columns).unwrap();
        assert_eq!(encode_step(number, &records).unwrap(), raw, "{name}");
    }
}

#[test]
fn a_longer_tail_is_ignored_and_a_shorter_one_is_defaults() {
    // Answer(call, ok, body) as a newer peer would send it, and as an older one.
    let longer =
        frame(19, &[0x95, 1, 0xc3, 0xa2, b'{', b'}', 0x91, 0x81, 0xa1, b'k', 0xc0, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0]);
    let shorter = frame(19, &[0x92, 1, 0xc3]);
    let read = |raw: &[u8]| decode::<ToFrontend>(raw).unwrap().unwrap().message;
    assert_eq!(read(&longer), read(&shorter));
}

fn frame(kind: u8, header: &[u8]) -> Vec<u8> {
    let size = header.len() as u32;
    [&(size + 5).to_le_bytes()[..], &[kind], &size.to_le_bytes(), header].concat()
}

/// A vector with some bytes changed: what a broken peer would send gets further than noise.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let all = vectors();
    (0..all.len(), prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)).prop_map(
        move |(which, changes)| {
            let mut raw = all[which].1.clone();
            for (place, byte) in changes {
                let place = place.index(raw.len());
                raw[place] = byte;
            }
            raw
        },
    )
}

fn read_whatever(raw: &[u8]) {
    let _ = decode::<ToEngine>(raw);
    if let Ok(Some(frame)) = decode::<ToFrontend>(raw)
        && let ToFrontend::Step(step) = frame.message
    {
        let _ = decode_step(step, frame.columns);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_frames_are_errors_and_never_panics(raw in damaged()) {
        read_whatever(&raw);
    }

    #[test]
    fn noise_after_a_good_prefix_is_an_error_and_never_a_panic(kind in 16u8..22, header in prop::collection::vec(any::<u8>(), 0..80)) {
        read_whatever(&frame(kind, &header));
    }

    #[test]
    fn a_frame_cut_anywhere_waits_for_more(which in 0usize..12, cut in any::<prop::sample::Index>()) {
        let (_, raw) = vectors().swap_remove(which);
        let cut = cut.index(raw.len());
        if ToFrontend::knows(raw[4]) {
            prop_assert!(decode::<ToFrontend>(&raw[..cut]).unwrap().is_none());
        }
    }
}
