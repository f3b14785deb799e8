use super::*;
use crate::formats::Format;
use crate::linear::tests::numbers;
use crate::matrix::Source;

struct Weight(Matrix);

impl AsRef<Matrix> for Weight {
    fn as_ref(&self) -> &Matrix {
        &self.0
    }
}

fn weight(rows: usize, columns: usize) -> Matrix {
    Matrix::pack(Cpu::detect(), Source::F32(&numbers(rows * columns, rows as u32)), rows, columns, Format::F32)
}

fn none() -> Step<'static> {
    Step { tokens: &[], positions: &[], slots: &[], row_starts: &[], page_table: &[] }
}

/// x (input) -> norm -> linear -> + x -> norm -> gated -> linear (output), and the sum (output).
fn tape() -> Tape<Weight> {
    let ops = vec![
        Op::RmsNorm { x: 0, weight: numbers(8, 1), eps: 1e-5, wide: false, out: 1 },
        Op::Linear {
            x: 1,
            weight: Weight(weight(8, 8)),
            bias: Some(numbers(8, 2)),
            residual: Some(0),
            wide: false,
            out: 2,
        },
        Op::RmsNorm { x: 2, weight: numbers(8, 3), eps: 1e-5, wide: false, out: 3 },
        Op::Gated { x: 3, weight: Weight(weight(32, 8)), bias: None, out: 4 },
        Op::Linear { x: 4, weight: Weight(weight(8, 16)), bias: None, residual: Some(2), wide: false, out: 5 },
    ];
    Tape::new(Numerics::Cpu, ops, vec![8, 8, 8, 8, 16, 8], &[0], &[5, 2])
}

#[test]
fn a_tape_gives_the_bits_of_the_operations_for_any_number_of_rows() {
    let (cpu, mut tape) = (Cpu::detect(), tape());
    for rows in [3, 1, 7, 2] {
        let x = numbers(rows * 8, 9);
        let mut expected = vec![vec![0.0; rows * 8]; 4];
        rms_norm(cpu, &x, &numbers(8, 1), 1e-5, &mut expected[0]);
        let mut sum = vec![0.0; rows * 8];
        let epilogue = Epilogue { bias: Some(&numbers(8, 2)), residual: Some(&x) };
        linear(cpu, &expected[0], &weight(8, 8), epilogue, &mut sum);
        rms_norm(cpu, &sum, &numbers(8, 3), 1e-5, &mut expected[1]);
        let mut gated = vec![0.0; rows * 16];
        gated_linear(cpu, &expected[1], &weight(32, 8), None, &mut gated);
        let epilogue = Epilogue { bias: None, residual: Some(&sum) };
        linear(cpu, &gated, &weight(8, 16), epilogue, &mut expected[2]);
        let (mut y, mut between) = (vec![f32::NAN; rows * 8], vec![f32::NAN; rows * 8]);
        tape.run(cpu, rows, &none(), &mut [], &[&x], vec![&mut y, &mut between]).expect("a sound step");
        assert_eq!((&y, &between), (&expected[2], &sum));
    }
}

#[test]
fn arrays_share_memory_only_when_they_are_not_alive_together() {
    let tape = tape();
    assert_eq!(tape.places[0], Place::Input(0));
    assert_eq!((tape.places[5], tape.places[2]), (Place::Output(0), Place::Output(1)));
    assert_eq!(
        (tape.places[1], tape.places[3], tape.places[4]),
        (Place::Buffer(0), Place::Buffer(0), Place::Buffer(1))
    );
}

#[test]
#[should_panic(expected = "reads what nobody wrote")]
fn what_nobody_wrote_is_not_read() {
    let ops: Vec<Op<Weight>> = vec![Op::RmsNorm { x: 1, weight: vec![1.0], eps: 0.0, wide: false, out: 2 }];
    let _ = Tape::new(Numerics::Cpu, ops, vec![1; 3], &[0], &[2]);
}

#[test]
#[should_panic(expected = "written twice")]
fn an_array_is_written_once() {
    let norm = |x, out| Op::<Weight>::RmsNorm { x, weight: vec![1.0], eps: 0.0, wide: false, out };
    let _ = Tape::new(Numerics::Cpu, vec![norm(0, 1), norm(0, 1)], vec![1; 2], &[0], &[1]);
}
