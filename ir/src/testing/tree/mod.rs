//! Any value as a tree of what it consists of: to be changed anywhere without knowing its type, and written as postcard
//! would write it. What is written need not be of that type any more.

mod build;
mod change;

pub use self::build::tree_of;
pub use self::change::change;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Tree {
    /// A bool or a byte: one byte as it is.
    Byte(u8),
    /// An unsigned integer of so many bits, as a variable-length number.
    Unsigned(u128, u32),
    /// A signed integer of so many bits.
    Signed(i128, u32),
    /// A floating-point number's bytes.
    Float(Vec<u8>),
    /// Text, or what is written in its place.
    Text(Vec<u8>),
    /// Nothing, or a value; the tag in front need not be one of the two.
    Option(u8, Option<Box<Tree>>),
    /// An enum's variant.
    Variant(u32, Box<Tree>),
    /// Elements with their number in front, which need not be true.
    List(Vec<Tree>, Option<u64>),
    /// Fields, or a key and its value: nothing in front.
    Fields(Vec<Tree>),
}

impl Tree {
    /// The value as bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Tree::Byte(byte) => out.push(*byte),
            Tree::Unsigned(value, _) => number(*value, out),
            Tree::Signed(value, _) => number(((value << 1) ^ (value >> 127)) as u128, out),
            Tree::Float(bytes) => out.extend_from_slice(bytes),
            Tree::Text(bytes) => {
                number(bytes.len() as u128, out);
                out.extend_from_slice(bytes);
            }
            Tree::Option(tag, value) => {
                out.push(*tag);
                value.iter().for_each(|value| value.write(out));
            }
            Tree::Variant(index, value) => {
                number((*index).into(), out);
                value.write(out);
            }
            Tree::List(items, claimed) => {
                number(claimed.unwrap_or(items.len() as u64).into(), out);
                items.iter().for_each(|item| item.write(out));
            }
            Tree::Fields(fields) => fields.iter().for_each(|field| field.write(out)),
        }
    }
}

/// Seven bits at a time, the lowest first.
fn number(mut value: u128, out: &mut Vec<u8>) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::programs;
    use crate::{DType, TokenType, Value};

    #[test]
    fn an_unchanged_tree_is_written_as_postcard_writes_the_value() {
        for program in programs::all() {
            for plan in &program.plans {
                let expected = postcard::to_stdvec(plan).expect("lists have a length");
                assert_eq!(tree_of(plan).bytes(), expected);
            }
            let expected = postcard::to_stdvec(&program.graph).expect("lists have a length");
            assert_eq!(tree_of(&program.graph).bytes(), expected);
        }
        let values = Value::List(vec![
            Value::Bool(true),
            Value::Int(i64::MIN),
            Value::Int(-1),
            Value::Float(-0.5),
            Value::Str("a".repeat(300)),
            Value::Map([("k".to_owned(), Value::Int(300))].into()),
            Value::Tensor(crate::BlobId(u32::MAX), TokenType::scalar(DType::F32)),
        ]);
        let expected = postcard::to_stdvec(&(values.clone(), Some(7u128), None::<u8>));
        let tree = tree_of(&(values, Some(7u128), None::<u8>));
        assert_eq!(tree.bytes(), expected.expect("lists have a length"));
    }
}
