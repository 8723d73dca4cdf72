//! What a client changes of a model's configuration as it loads it. A model is made from its file all the same.

use crate::protocol::json::{Json, parse};

/// Values of a configuration, at most.
const MAX_VALUES: usize = 1024;

/// What is changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    /// Rows of a request, at most; 0 for requests without rows.
    pub(crate) max_batch: u32,
}

impl Overrides {
    /// Reads a configuration: JSON, in the words of Triton's `ModelConfig`. `max_rows` is the largest batch that there may be.
    ///
    /// # Errors
    /// What is wrong with it, in words that follow those that name it.
    pub(crate) fn parse(config: &str, max_rows: usize) -> Result<Self, String> {
        let json =
            parse(config.as_bytes(), MAX_VALUES).map_err(|wrong| format!("is wrong: {wrong}"))?;
        let Json::Object(members) = &json else {
            return Err(format!("is {}; it must be an object", json.kind()));
        };

        let mut overrides = Self::default();
        for (name, value) in members {
            if name != "max_batch_size" {
                let name: String = name.chars().take(100).collect();
                return Err(format!(
                    "changes `{name}`, which its file decides; what can be changed is `max_batch_size`"
                ));
            }
            overrides.max_batch = batch_of(value, max_rows)?;
        }
        Ok(overrides)
    }
}

/// A number, which may be a text as JSON has it of protobuf.
fn batch_of(value: &Json<'_>, max_rows: usize) -> Result<u32, String> {
    let text = match value {
        Json::Number(text) => *text,
        Json::String(text) => text.as_ref(),
        other => {
            return Err(format!(
                "says {} for `max_batch_size`; it must be a whole number",
                other.kind()
            ));
        }
    };
    let number = text
        .parse()
        .ok()
        .filter(|number| *number as usize <= max_rows);
    number.ok_or_else(|| {
        let text: String = text.chars().take(40).collect();
        format!(
            "says {text} for `max_batch_size`; it must be a whole number up to {max_rows}, as all rows of a request wait in the \
             queue at once (`--queue`)"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_batch_can_be_changed_and_only_as_far_as_the_queue_goes() {
        let check = |config: &str, expect: Result<u32, &str>| match expect {
            Ok(max_batch) => assert_eq!(Overrides::parse(config, 16), Ok(Overrides { max_batch })),
            Err(part) => {
                let error = Overrides::parse(config, 16).expect_err("wrong");
                assert!(error.contains(part), "{error}");
            }
        };
        check("{}", Ok(0));
        check(r#"{"max_batch_size": 8}"#, Ok(8));
        check(r#"{"max_batch_size": "16"}"#, Ok(16));
        check(
            r#"{"max_batch_size": 17}"#,
            Err("says 17 for `max_batch_size`; it must be a whole number up to 16"),
        );
        check(r#"{"max_batch_size": -1}"#, Err("says -1"));
        check(r#"{"max_batch_size": []}"#, Err("says a list"));
        check(r#"{"input": []}"#, Err("changes `input`"));
        check("3", Err("is a number; it must be an object"));
        check(r#""parameters": {}"#, Err("is wrong: byte 12 of the JSON"));
    }
}
