//! 64-bit integers as pairs of words, and complex numbers as pairs of floats: what devices without such types do.

use super::lang::{Builder, Val};

/// A 64-bit integer that wraps.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Wide<'k> {
    pub low: Val<'k>,
    pub high: Val<'k>,
}

#[expect(missing_docs, reason = "each is what its name says")]
impl<'k> Wide<'k> {
    pub fn constant(k: &'k Builder, value: u64) -> Self {
        Self {
            low: k.u32(value as u32),
            high: k.u32((value >> 32) as u32),
        }
    }

    pub fn from_word(word: Val<'k>) -> Self {
        Self {
            low: word,
            high: word.builder().u32(0),
        }
    }

    /// Element `index` of a binding of words.
    pub fn load(k: &'k Builder, binding: u32, index: Val<'k>) -> Self {
        let at = index * 2;
        Self {
            low: k.load(binding, at),
            high: k.load(binding, at + 1),
        }
    }

    pub fn store(self, binding: u32, index: Val<'k>) {
        let k = self.low.builder();
        let at = index * 2;
        k.store(binding, at, self.low);
        k.store(binding, at + 1, self.high);
    }

    pub fn plus(self, other: Self) -> Self {
        let low = self.low + other.low;
        let carry = low.lt(other.low).cast(super::lang::Ty::U32);
        Self {
            low,
            high: self.high + other.high + carry,
        }
    }

    pub fn times(self, other: Self) -> Self {
        let k = self.low.builder();
        let high = k.mul_high(self.low, other.low) + self.low * other.high + self.high * other.low;
        Self {
            low: self.low * other.low,
            high,
        }
    }

    pub fn xor(self, other: Self) -> Self {
        Self {
            low: self.low ^ other.low,
            high: self.high ^ other.high,
        }
    }

    /// Shifted right by `bits`, from 1 to 31.
    pub fn shift_right(self, bits: u32) -> Self {
        Self {
            low: (self.low >> bits) | (self.high << (32 - bits)),
            high: self.high >> bits,
        }
    }
}

/// A complex number.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "fields say what their names say")]
pub struct Cx<'k> {
    pub re: Val<'k>,
    pub im: Val<'k>,
}

#[expect(missing_docs, reason = "each is what its name says")]
impl<'k> Cx<'k> {
    pub fn new(re: Val<'k>, im: Val<'k>) -> Self {
        Self { re, im }
    }

    pub fn load(k: &'k Builder, binding: u32, index: Val<'k>) -> Self {
        let [re, im] = k.load_pair(binding, index);
        Self { re, im }
    }

    pub fn store(self, binding: u32, index: Val<'k>) {
        self.re
            .builder()
            .store_pair(binding, index, [self.re, self.im]);
    }

    pub fn plus(self, o: Self) -> Self {
        Self::new(self.re + o.re, self.im + o.im)
    }

    pub fn minus(self, o: Self) -> Self {
        Self::new(self.re - o.re, self.im - o.im)
    }

    pub fn times(self, o: Self) -> Self {
        Self::new(
            self.re * o.re - self.im * o.im,
            self.re * o.im + self.im * o.re,
        )
    }

    pub fn norm(self) -> Val<'k> {
        self.re * self.re + self.im * self.im
    }

    /// As `num_complex` divides.
    pub fn over(self, o: Self) -> Self {
        let norm = o.norm();
        let re = self.re * o.re + self.im * o.im;
        let im = self.im * o.re - self.re * o.im;
        Self::new(re / norm, im / norm)
    }

    pub fn conj(self) -> Self {
        Self::new(self.re, -self.im)
    }

    pub fn scale(self, g: Val<'k>) -> Self {
        Self::new(self.re * g, self.im * g)
    }

    /// Times j.
    pub fn turn(self) -> Self {
        Self::new(-self.im, self.re)
    }
}
