//! Trees of values, by way of their own serialization.

use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

use super::Tree;

/// The tree of a value.
///
/// # Panics
/// If the value refuses to be serialized, which data of this crate does not.
pub fn tree_of<T: Serialize + ?Sized>(value: &T) -> Tree {
    value.serialize(Builder).expect("plain data")
}

/// No value refuses.
type Never = std::fmt::Error;

struct Builder;

/// The parts of a value so far, and what they are parts of.
struct Parts {
    items: Vec<Tree>,
    /// The variant that they belong to.
    variant: Option<u32>,
    is_list: bool,
}

impl Parts {
    fn new(variant: Option<u32>, is_list: bool) -> Self {
        Self {
            items: Vec::new(),
            variant,
            is_list,
        }
    }

    fn add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        self.items.push(value.serialize(Builder)?);
        Ok(())
    }

    fn finish(self) -> Tree {
        match (self.variant, self.is_list) {
            (Some(index), _) => Tree::Variant(index, Box::new(Tree::Fields(self.items))),
            (None, true) => Tree::List(self.items, None),
            (None, false) => Tree::Fields(self.items),
        }
    }
}

macro_rules! unsigned {
    ($($name:ident: $ty:ty),*) => {$(
        fn $name(self, value: $ty) -> Result<Tree, Never> {
            Ok(Tree::Unsigned(value.into(), <$ty>::BITS))
        }
    )*};
}

macro_rules! signed {
    ($($name:ident: $ty:ty),*) => {$(
        fn $name(self, value: $ty) -> Result<Tree, Never> {
            Ok(Tree::Signed(value.into(), <$ty>::BITS))
        }
    )*};
}

impl Serializer for Builder {
    type Ok = Tree;
    type Error = Never;
    type SerializeSeq = Parts;
    type SerializeTuple = Parts;
    type SerializeTupleStruct = Parts;
    type SerializeTupleVariant = Parts;
    type SerializeMap = Parts;
    type SerializeStruct = Parts;
    type SerializeStructVariant = Parts;

    unsigned!(serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128);
    signed!(serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128);

    fn is_human_readable(&self) -> bool {
        false
    }

    fn serialize_bool(self, value: bool) -> Result<Tree, Never> {
        Ok(Tree::Byte(value.into()))
    }

    fn serialize_u8(self, value: u8) -> Result<Tree, Never> {
        Ok(Tree::Byte(value))
    }

    fn serialize_i8(self, value: i8) -> Result<Tree, Never> {
        Ok(Tree::Byte(value as u8))
    }

    fn serialize_f32(self, value: f32) -> Result<Tree, Never> {
        Ok(Tree::Float(value.to_le_bytes().to_vec()))
    }

    fn serialize_f64(self, value: f64) -> Result<Tree, Never> {
        Ok(Tree::Float(value.to_le_bytes().to_vec()))
    }

    fn serialize_char(self, value: char) -> Result<Tree, Never> {
        Ok(Tree::Text(value.to_string().into_bytes()))
    }

    fn serialize_str(self, value: &str) -> Result<Tree, Never> {
        Ok(Tree::Text(value.as_bytes().to_vec()))
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Tree, Never> {
        Ok(Tree::Text(value.to_vec()))
    }

    fn serialize_none(self) -> Result<Tree, Never> {
        Ok(Tree::Option(0, None))
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Tree, Never> {
        Ok(Tree::Option(1, Some(Box::new(value.serialize(Builder)?))))
    }

    fn serialize_unit(self) -> Result<Tree, Never> {
        Ok(Tree::Fields(Vec::new()))
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Tree, Never> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
    ) -> Result<Tree, Never> {
        Ok(Parts::new(Some(index), false).finish())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Tree, Never> {
        value.serialize(Builder)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<Tree, Never> {
        let mut parts = Parts::new(Some(index), false);
        parts.add(value)?;
        Ok(parts.finish())
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Parts, Never> {
        Ok(Parts::new(None, true))
    }

    fn serialize_tuple(self, _: usize) -> Result<Parts, Never> {
        Ok(Parts::new(None, false))
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts, Never> {
        Ok(Parts::new(None, false))
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts, Never> {
        Ok(Parts::new(Some(index), false))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Parts, Never> {
        Ok(Parts::new(None, true))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Parts, Never> {
        Ok(Parts::new(None, false))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts, Never> {
        Ok(Parts::new(Some(index), false))
    }
}

macro_rules! elements {
    ($($of:ident: $add:ident),*) => {$(
        impl $of for Parts {
            type Ok = Tree;
            type Error = Never;

            fn $add<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
                self.add(value)
            }

            fn end(self) -> Result<Tree, Never> {
                Ok(self.finish())
            }
        }
    )*};
}

elements!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field,
    SerializeTupleVariant: serialize_field
);

macro_rules! named_fields {
    ($($of:ident),*) => {$(
        impl $of for Parts {
            type Ok = Tree;
            type Error = Never;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                _: &'static str,
                value: &T,
            ) -> Result<(), Never> {
                self.add(value)
            }

            fn end(self) -> Result<Tree, Never> {
                Ok(self.finish())
            }
        }
    )*};
}

named_fields!(SerializeStruct, SerializeStructVariant);

impl SerializeMap for Parts {
    type Ok = Tree;
    type Error = Never;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Never> {
        self.items.push(Tree::Fields(vec![key.serialize(Builder)?]));
        Ok(())
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Never> {
        let value = value.serialize(Builder)?;
        if let Some(Tree::Fields(pair)) = self.items.last_mut() {
            pair.push(value);
        }
        Ok(())
    }

    fn end(self) -> Result<Tree, Never> {
        Ok(self.finish())
    }
}
