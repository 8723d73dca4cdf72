//! The printed text as people read it.

use super::print;
use crate::lang::{Builder, Mem, Place, Ty};

#[test]
fn kernels_read_like_ptx() {
    let k = Builder::new("row sums", 64);
    let (x, y) = (k.reads(Mem::F32), k.writes(Mem::Pair));
    let len = k.spec(12);
    let partial = k.shared(Ty::F32, 64);
    k.each_group(k.firings(), |row| {
        let sum = k.var(k.f32(0.0));
        k.each_local(len, |i| sum.set(sum.get() + k.load(x, row * len + i)));
        let me = k.place(Place::Local);
        partial.set(me, sum.get());
        k.barrier();
        k.if_(me.eq(k.u32(0)), || {
            k.store_pair(y, row, [partial.get(k.u32(1)).sqrt(), k.f32(0.5)]);
        });
        k.barrier();
    });
    insta::assert_snapshot!(print(&k.finish(), false).0);
}
