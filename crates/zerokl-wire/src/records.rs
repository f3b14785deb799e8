//! What one step did for one request; a step's records as one message of columns.

use crate::codec::WireError;
use crate::frames::{Columns, column, encode, items};
use crate::messages::{Done, First, Span, Step, ToFrontend};

/// Logprobs of some rows, as columns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Logprobs {
    pub rows: usize,
    pub num_top: usize,
    pub num_ids: usize,
    /// Of the row's own token.
    pub chosen: Vec<f32>,
    /// Per row: highest first, ties by lower id.
    pub top_ids: Vec<i32>,
    pub top: Vec<f32>,
    /// Per row: in the order asked.
    pub ids: Vec<f32>,
}

/// New tokens of one request with their text and logprobs; what it ended with, if it ended.
///
/// The text is final: joined over a request's records it is the whole answer, cut at the stop string.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Record {
    pub rid: u64,
    pub tokens: Vec<i32>,
    pub text: String,
    /// Of prompt tokens, all at once, with the first record.
    pub scores: Option<Logprobs>,
    /// One row per new token.
    pub logprobs: Option<Logprobs>,
    /// With the first record, always.
    pub first: Option<First>,
    /// With the last record, always.
    pub done: Option<Done>,
}

/// The records of a Step. An error where its columns contradict each other.
pub fn decode_step(step: Step, columns: &[u8]) -> Result<Vec<Record>, WireError> {
    let rids = items(column(columns, step.rids)?, u64::from_le_bytes)?;
    let rows = rids.len();
    let token_counts = counts(columns, step.num_tokens, rows)?;
    let text_counts = counts(columns, step.num_text_bytes, rows)?;
    let tokens = items(column(columns, step.tokens)?, i32::from_le_bytes)?;
    let text = column(columns, step.text)?;
    let mut tokens = Cuts::of("tokens", &tokens, &token_counts)?;
    let mut texts = Cuts::of("text", text, &text_counts)?;
    let mut records = Vec::with_capacity(rows);
    for (row, rid) in rids.into_iter().enumerate() {
        let text = std::str::from_utf8(texts.next(text_counts[row]))
            .map_err(|error| WireError(format!("text that is no UTF-8: {error}")))?;
        let tokens = tokens.next(token_counts[row]).to_vec();
        records.push(Record { rid, tokens, text: text.into(), ..Record::default() });
    }
    add_logprobs(&mut records, &step, columns)?;
    for first in step.firsts {
        let record = at(&mut records, first.row)?;
        record.first = Some(first);
    }
    for done in step.dones {
        let record = at(&mut records, done.row)?;
        record.done = Some(done);
    }
    Ok(records)
}

fn add_logprobs(records: &mut [Record], step: &Step, columns: &[u8]) -> Result<(), WireError> {
    if step.num_scores.size == 0 {
        return Ok(());
    }
    let rows = records.len();
    let scored = counts(columns, step.num_scores, rows)?;
    let drawn = counts(columns, step.num_logprobs, rows)?;
    let tops = counts(columns, step.num_top, rows)?;
    let ids = counts(columns, step.num_ids, rows)?;
    let floats = |span: Span| items(column(columns, span)?, f32::from_le_bytes);
    let (chosen, top, id_scores) = (floats(step.chosen)?, floats(step.top)?, floats(step.ids)?);
    let top_ids = items(column(columns, step.top_ids)?, i32::from_le_bytes)?;
    let both: Vec<usize> = scored.iter().zip(&drawn).map(|(a, b)| a.saturating_add(*b)).collect();
    let wide =
        |widths: &[usize]| -> Vec<usize> { both.iter().zip(widths).map(|(n, w)| n.saturating_mul(*w)).collect() };
    let (top_counts, id_counts) = (wide(&tops), wide(&ids));
    let mut chosen = Cuts::of("chosen", &chosen, &both)?;
    let mut top_ids = Cuts::of("top_ids", &top_ids, &top_counts)?;
    let mut top = Cuts::of("top", &top, &top_counts)?;
    let mut id_scores = Cuts::of("ids", &id_scores, &id_counts)?;
    for (row, record) in records.iter_mut().enumerate() {
        let (num_top, num_ids) = (tops[row], ids[row]);
        let mut block = |rows: usize| {
            (rows > 0).then(|| Logprobs {
                rows,
                num_top,
                num_ids,
                chosen: chosen.next(rows).to_vec(),
                top_ids: top_ids.next(rows * num_top).to_vec(),
                top: top.next(rows * num_top).to_vec(),
                ids: id_scores.next(rows * num_ids).to_vec(),
            })
        };
        record.scores = block(scored[row]);
        record.logprobs = block(drawn[row]);
    }
    Ok(())
}

fn at(records: &mut [Record], row: u32) -> Result<&mut Record, WireError> {
    let rows = records.len();
    records.get_mut(row as usize).ok_or_else(|| WireError(format!("a row that is not among the step's {rows}")))
}

fn counts(columns: &[u8], span: Span, rows: usize) -> Result<Vec<usize>, WireError> {
    let counts = items(column(columns, span)?, |raw| u32::from_le_bytes(raw) as usize)?;
    if counts.len() != rows {
        return Err(WireError(format!("a column of {} counts for {rows} records", counts.len())));
    }
    Ok(counts)
}

/// A column that is cut row by row, its length checked before.
struct Cuts<'a, T> {
    rest: &'a [T],
}

impl<'a, T> Cuts<'a, T> {
    fn of(name: &str, column: &'a [T], counts: &[usize]) -> Result<Self, WireError> {
        let total = counts.iter().fold(0usize, |sum, count| sum.saturating_add(*count));
        if total != column.len() {
            let length = column.len();
            return Err(WireError(format!("column {name} has {length} items, its counts add up to {total}")));
        }
        Ok(Self { rest: column })
    }

    fn next(&mut self, count: usize) -> &'a [T] {
        let (cut, rest) = self.rest.split_at(count);
        self.rest = rest;
        cut
    }
}

/// One Step frame.
pub fn encode_step(step: u64, records: &[Record]) -> Result<Vec<u8>, WireError> {
    let mut columns = Columns::default();
    let texts: Vec<u8> = records.iter().flat_map(|record| record.text.bytes()).collect();
    let mut message = Step {
        step,
        rids: columns.add_u64(records.iter().map(|record| record.rid)),
        num_tokens: columns.add_u32(records.iter().map(|record| record.tokens.len() as u32)),
        tokens: columns.add_i32(records.iter().flat_map(|record| record.tokens.iter().copied())),
        num_text_bytes: columns.add_u32(records.iter().map(|record| record.text.len() as u32)),
        text: columns.add(&texts),
        num_scores: Span::default(),
        num_logprobs: Span::default(),
        num_top: Span::default(),
        num_ids: Span::default(),
        chosen: Span::default(),
        top_ids: Span::default(),
        top: Span::default(),
        ids: Span::default(),
        firsts: Vec::new(),
        dones: Vec::new(),
    };
    if records.iter().any(|record| record.scores.is_some() || record.logprobs.is_some()) {
        logprob_columns(&mut message, &mut columns, records);
    }
    for (row, record) in (0u32..).zip(records) {
        message.firsts.extend(record.first.clone().map(|first| First { row, ..first }));
        message.dones.extend(record.done.clone().map(|done| Done { row, ..done }));
    }
    encode(&ToFrontend::Step(message), &columns)
}

fn logprob_columns(message: &mut Step, columns: &mut Columns, records: &[Record]) {
    let rows = |block: &Option<Logprobs>| block.as_ref().map_or(0, |one| one.rows as u32);
    let widest = || records.iter().map(|record| record.scores.as_ref().or(record.logprobs.as_ref()));
    let blocks = || records.iter().flat_map(|record| record.scores.iter().chain(&record.logprobs));
    message.num_scores = columns.add_u32(records.iter().map(|record| rows(&record.scores)));
    message.num_logprobs = columns.add_u32(records.iter().map(|record| rows(&record.logprobs)));
    message.num_top = columns.add_u32(widest().map(|one| one.map_or(0, |block| block.num_top as u32)));
    message.num_ids = columns.add_u32(widest().map(|one| one.map_or(0, |block| block.num_ids as u32)));
    message.chosen = columns.add_f32(blocks().flat_map(|block| block.chosen.iter().copied()));
    message.top_ids = columns.add_i32(blocks().flat_map(|block| block.top_ids.iter().copied()));
    message.top = columns.add_f32(blocks().flat_map(|block| block.top.iter().copied()));
    message.ids = columns.add_f32(blocks().flat_map(|block| block.ids.iter().copied()));
}
