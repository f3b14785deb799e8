//! Which arrays may share memory: those that are never alive together.

use super::{Name, Op, Place};

/// (where each array lies, how many buffers that takes). Panics unless every array that is no input is written once, and
/// before it is read.
pub fn places<W>(ops: &[Op<W>], arrays: usize, inputs: &[Name], outputs: &[Name]) -> (Vec<Place>, usize) {
    let mut places: Vec<Option<Place>> = vec![None; arrays];
    let mut last_read = vec![0; arrays];
    for (number, op) in ops.iter().enumerate() {
        op.reads().into_iter().for_each(|name| last_read[name] = number);
    }
    inputs.iter().enumerate().for_each(|(i, &name)| places[name] = Some(Place::Input(i)));
    let (mut free, mut count) = (Vec::new(), 0);
    for (number, op) in ops.iter().enumerate() {
        assert!(op.reads().iter().all(|&name| places[name].is_some()), "operation {number} reads what nobody wrote");
        for name in op.writes() {
            assert!(places[name].is_none(), "array {name} is written twice");
            places[name] = Some(match outputs.iter().position(|&output| output == name) {
                Some(i) => Place::Output(i),
                None => Place::Buffer(free.pop().unwrap_or_else(|| {
                    count += 1;
                    count - 1
                })),
            });
        }
        // Only now: what an operation writes must not lie where it still reads.
        for name in op.reads().into_iter().chain(op.writes()) {
            if let Some(Place::Buffer(i)) = places[name]
                && last_read[name] <= number
                && !free.contains(&i)
            {
                free.push(i);
            }
        }
    }
    assert!(outputs.iter().all(|&name| matches!(places[name], Some(Place::Output(_)))), "outputs are written");
    (places.into_iter().map(|place| place.unwrap_or(Place::Buffer(0))).collect(), count)
}
