//! x
use std::time::Instant;
use zbmd_ir::testing::hostile;
fn main() {
    let size: usize = std::env::args().nth(1).unwrap().parse().unwrap();
    let which: usize = std::env::args().nth(2).unwrap().parse().unwrap();
    let mut path = format!("/tmp/wc/attack-{size}-{which}.zbmd");
    if size == 0 {
        path = std::env::args().nth(3).unwrap();
    }
    if size > 0 && std::env::args().nth(3).is_some() {
        let all = hostile::all(size);
        std::fs::write(&path, zbmd_ir::bundle::encode(&all[which].program)).unwrap();
        println!("{}", all[which].name);
        return;
    }
    let bytes = std::fs::read(&path).unwrap();
    let len = bytes.len();
    let t = Instant::now();
    let p = zbmd_ir::bundle::decode(bytes.into());
    let d = t.elapsed();
    let (r, w) = match &p {
        Ok(p) => {
            let (r, w) = zbmd_ir::verify::check_counting(p);
            (
                r.err()
                    .map(|e| format!("{} errors, {}", e.len(), e[0].code())),
                Some(w),
            )
        }
        Err(e) => (Some(e.to_string()), None),
    };
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let hwm = status
        .lines()
        .find(|l| l.starts_with("VmHWM"))
        .unwrap()
        .to_owned();
    println!(
        "  {len} bytes, decode {:?} all {:?} {hwm} {r:?} {w:?}",
        d,
        t.elapsed()
    );
}
