//! The header that names each prompt's seed, so that an unseeded answer can be asked for again.

use std::sync::Arc;

use crate::exchange::{Answer, add_header};
use crate::job::Job;

/// Characters; a longer header is left out, because clients and proxies refuse long ones.
const LONGEST: usize = 4096;

/// One seed per prompt, comma-separated.
pub fn name_seeds(answer: &mut Answer, seeds: &[i64]) {
    let value = seeds.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    if value.len() <= LONGEST {
        add_header(answer, "x-zerokl-seed", &value);
    }
}

/// Those of a stream, whose head goes out when only one prompt's record has come: the seed of a lone prompt, or those
/// that the request itself gave.
pub fn stream_seeds(jobs: &[Arc<Job>], n: usize, first_seed: i64) -> Vec<i64> {
    let given: Vec<Option<i64>> = jobs.iter().step_by(n).map(|job| job.sampling.seed).collect();
    if given.len() == 1 {
        return vec![first_seed];
    }
    given.into_iter().collect::<Option<Vec<i64>>>().unwrap_or_default()
}
