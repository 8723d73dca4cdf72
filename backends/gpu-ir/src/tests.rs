//! The kernel language by itself.

use super::lang::{Builder, Mem, Ty};

#[test]
fn kernels_read_like_kernels() {
    let k = Builder::new("row sums", 64);
    let x = k.reads(Mem::F32);
    let y = k.writes(Mem::F32);
    let len = k.spec(12);
    k.each(k.firings(), |row| {
        let sum = k.var(k.f32(0.0));
        k.times(len, |i| sum.set(sum.get() + k.load(x, row * len + i)));
        k.if_(sum.get().gt(k.f32(0.0)), || {
            k.store(y, row, sum.get().sqrt())
        });
    });
    insta::assert_snapshot!(k.finish());
}

#[test]
fn types_that_do_not_fit_are_our_mistakes() {
    type Mistake = fn(&Builder);
    let mistakes: [(&str, Mistake); 5] = [
        ("sum of two types", |k| _ = (k.u32(1) + k.f32(1.0)).reg),
        ("condition that is none", |k| k.if_(k.u32(1), || {})),
        ("store of another type", |k| {
            k.store(k.writes(Mem::F32), k.u32(0), k.u32(0))
        }),
        ("pair loaded as one", |k| {
            _ = k.load(k.reads(Mem::Pair), k.u32(0)).reg
        }),
        ("variable of another type", |k| {
            k.var(k.u32(0)).set(k.number(Ty::F64, 0.0))
        }),
    ];
    for (what, mistake) in mistakes {
        let caught = std::panic::catch_unwind(|| mistake(&Builder::new("wrong", 1)));
        assert!(caught.is_err(), "{what} was allowed");
    }
}
