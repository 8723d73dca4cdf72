//! A deserializer that adds up the memory of what it makes, and stops before that is more than its budget.
//!
//! A byte of a bundle's structure may stand for some 25 bytes of memory, and a byte of a plan that is stored as a
//! difference for thousands. So what is untrusted is read through this: each element of a list or map is charged with
//! its own size as soon as it is read, and each string with its length.

use std::cell::Cell;
use std::fmt::{self, Formatter};

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// What a list takes for each byte of its elements: it doubles when it is full. The nodes of a map are at least half
/// full, too.
const GROWTH: usize = 2;

/// Bytes of memory that may still be taken.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    limit: u64,
    left: Cell<u64>,
    is_overrun: Cell<bool>,
}

impl MemoryBudget {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            left: Cell::new(limit),
            is_overrun: Cell::new(false),
        }
    }

    /// The bytes that it was made with.
    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Whether more was asked for than there was.
    pub(super) fn is_overrun(&self) -> bool {
        self.is_overrun.get()
    }

    fn charge<E: Error>(&self, bytes: usize) -> Result<(), E> {
        match self.left.get().checked_sub(bytes as u64) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.is_overrun.set(true);
                Err(E::custom("takes too much memory"))
            }
        }
    }

    /// Measures what `inner` makes.
    fn measure<T>(&self, inner: T) -> Measured<'_, T> {
        Measured {
            inner,
            budget: self,
            elements: Elements::OfList,
        }
    }

    /// Measures what `inner` makes of the fields of one value.
    fn measure_fields<T>(&self, inner: T) -> Measured<'_, T> {
        Measured {
            inner,
            budget: self,
            elements: Elements::Fields,
        }
    }
}

/// Reads a value with postcard, and what follows it. The budget has a mark if that is why it fails.
pub(super) fn take_from_bytes<'de, T: DeserializeOwned>(
    bytes: &'de [u8],
    budget: &MemoryBudget,
) -> Result<(T, &'de [u8]), postcard::Error> {
    let mut inner = postcard::Deserializer::from_bytes(bytes);
    budget.charge::<postcard::Error>(size_of::<T>())?;
    let value = T::deserialize(budget.measure(&mut inner))?;
    Ok((value, inner.finalize()?))
}

/// What the elements of a sequence are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elements {
    /// Each is charged as it is read.
    OfList,
    /// They lie within a value that has been charged.
    Fields,
}

/// A deserializer, visitor, seed or access of serde that charges what passes through it.
struct Measured<'a, T> {
    inner: T,
    budget: &'a MemoryBudget,
    elements: Elements,
}

impl<T> Measured<'_, T> {
    fn charge_element<Element, E: Error>(&self) -> Result<(), E> {
        let bytes = size_of::<Element>().saturating_mul(GROWTH);
        self.budget.charge(bytes)
    }
}

/// Methods of a deserializer that take a visitor alone.
macro_rules! with_visitor {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            let budget = self.budget;
            self.inner.$method(budget.measure(visitor))
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Measured<'_, D> {
    type Error = D::Error;

    with_visitor! {
        deserialize_any deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_bytes
        deserialize_byte_buf deserialize_option deserialize_unit deserialize_seq deserialize_map
        deserialize_identifier deserialize_ignored_any
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let measured = self.budget.measure(visitor);
        self.inner.deserialize_unit_struct(name, measured)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let measured = self.budget.measure(visitor);
        self.inner.deserialize_newtype_struct(name, measured)
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let measured = self.budget.measure_fields(visitor);
        self.inner.deserialize_tuple(len, measured)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let measured = self.budget.measure_fields(visitor);
        self.inner.deserialize_tuple_struct(name, len, measured)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let measured = self.budget.measure_fields(visitor);
        self.inner.deserialize_struct(name, fields, measured)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let measured = self.budget.measure(visitor);
        self.inner.deserialize_enum(name, variants, measured)
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

/// Methods of a visitor for values that take no memory of their own.
macro_rules! plain_values {
    ($($method:ident: $type:ty)*) => {$(
        fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
            self.inner.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Measured<'_, V> {
    type Value = V::Value;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        self.inner.expecting(formatter)
    }

    plain_values! {
        visit_bool: bool visit_i8: i8 visit_i16: i16 visit_i32: i32 visit_i64: i64 visit_i128: i128
        visit_u8: u8 visit_u16: u16 visit_u32: u32 visit_u64: u64 visit_u128: u128
        visit_f32: f32 visit_f64: f64 visit_char: char
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<V::Value, E> {
        self.budget.charge(value.len())?;
        self.inner.visit_str(value)
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<V::Value, E> {
        self.budget.charge(value.len())?;
        self.inner.visit_borrowed_str(value)
    }

    fn visit_bytes<E: Error>(self, value: &[u8]) -> Result<V::Value, E> {
        self.budget.charge(value.len())?;
        self.inner.visit_bytes(value)
    }

    fn visit_borrowed_bytes<E: Error>(self, value: &'de [u8]) -> Result<V::Value, E> {
        self.budget.charge(value.len())?;
        self.inner.visit_borrowed_bytes(value)
    }

    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<V::Value, D::Error> {
        let measured = self.budget.measure(deserializer);
        self.inner.visit_some(measured)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<V::Value, D::Error> {
        let measured = self.budget.measure(deserializer);
        self.inner.visit_newtype_struct(measured)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let measured = Measured {
            inner: access,
            budget: self.budget,
            elements: self.elements,
        };
        self.inner.visit_seq(measured)
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let measured = self.budget.measure(access);
        self.inner.visit_map(measured)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        let measured = self.budget.measure(access);
        self.inner.visit_enum(measured)
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Measured<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let measured = self.budget.measure(deserializer);
        self.inner.deserialize(measured)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Measured<'_, A> {
    type Error = A::Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let measured = self.budget.measure(seed);
        let element = self.inner.next_element_seed(measured)?;
        if element.is_some() && self.elements == Elements::OfList {
            self.charge_element::<S::Value, A::Error>()?;
        }
        Ok(element)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Measured<'_, A> {
    type Error = A::Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let measured = self.budget.measure(seed);
        let key = self.inner.next_key_seed(measured)?;
        if key.is_some() {
            self.charge_element::<S::Value, A::Error>()?;
        }
        Ok(key)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.charge_element::<S::Value, A::Error>()?;
        let measured = self.budget.measure(seed);
        self.inner.next_value_seed(measured)
    }

    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'a, 'de, A: EnumAccess<'de>> EnumAccess<'de> for Measured<'a, A> {
    type Error = A::Error;
    type Variant = Measured<'a, A::Variant>;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let (value, variant) = self.inner.variant_seed(self.budget.measure(seed))?;
        Ok((value, self.budget.measure(variant)))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Measured<'_, A> {
    type Error = A::Error;

    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let measured = self.budget.measure(seed);
        self.inner.newtype_variant_seed(measured)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let measured = self.budget.measure_fields(visitor);
        self.inner.tuple_variant(len, measured)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let measured = self.budget.measure_fields(visitor);
        self.inner.struct_variant(fields, measured)
    }
}
