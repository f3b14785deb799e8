//! Prometheus' text format 0.0.4, in a fixed order of names, as the Python frontend writes it.

use std::fmt::Write;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Written as Python's repr, but for the exponent of very small and very large floats.
#[derive(Debug, Clone, Copy)]
pub enum Number {
    Whole(u64),
    Float(f64),
}

pub struct Sample {
    pub suffix: &'static str,
    pub labels: Vec<(&'static str, String)>,
    pub value: Number,
}

/// One metric: its name, and its samples.
pub struct Family {
    pub name: String,
    pub kind: &'static str,
    pub help: &'static str,
    pub samples: Vec<Sample>,
}

/// Counts of observations up to each bound.
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    pub fn observe(&mut self, value: f64, times: u64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place] += times;
        self.sum += value * times as f64;
    }

    pub fn samples(&self) -> Vec<Sample> {
        let bounds = self.bounds.iter().map(|bound| format!("{bound:?}")).chain(["+Inf".to_owned()]);
        let mut below = 0;
        let mut samples: Vec<Sample> = bounds
            .zip(&self.counts)
            .map(|(bound, count)| {
                below += count;
                Sample { suffix: "_bucket", labels: vec![("le", bound)], value: Number::Whole(below) }
            })
            .collect();
        samples.push(Sample { suffix: "_count", labels: Vec::new(), value: Number::Whole(below) });
        samples.push(Sample { suffix: "_sum", labels: Vec::new(), value: Number::Float(self.sum) });
        samples
    }
}

/// All of them, sorted by name; the model's name goes on every sample.
pub fn exposition(mut families: Vec<Family>, model_name: &str) -> String {
    families.sort_by(|a, b| a.name.cmp(&b.name));
    let mut text = String::new();
    for family in &families {
        write_family(&mut text, family, model_name).expect("writing to a String never fails");
    }
    text
}

fn write_family(text: &mut String, family: &Family, model_name: &str) -> std::fmt::Result {
    let name = &family.name;
    writeln!(text, "# HELP {name} {}", family.help)?;
    writeln!(text, "# TYPE {name} {}", family.kind)?;
    for sample in &family.samples {
        write!(text, "{name}{}{{model_name=\"{}\"", sample.suffix, escaped(model_name))?;
        for (key, value) in &sample.labels {
            write!(text, ",{key}=\"{}\"", escaped(value))?;
        }
        match sample.value {
            Number::Whole(value) => writeln!(text, "}} {value}")?,
            Number::Float(value) => writeln!(text, "}} {value:?}")?,
        }
    }
    Ok(())
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}
