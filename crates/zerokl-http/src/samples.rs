//! Arbitrary JSON, for tests.

use proptest::prelude::*;
use serde_json::{Map, Value};

/// Keys that the tables know are among its keys.
pub fn json() -> impl Strategy<Value = Value> {
    let known =
        ["text", "input_ids", "sampling_params", "n", "stop", "logit_bias", "messages", "stream", "prompt", "rid"];
    let key = prop_oneof![prop::sample::select(known.to_vec()).prop_map(str::to_owned), ".{0,6}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (-3i64..4).prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..5)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}
