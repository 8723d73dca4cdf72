fn main() {
    let limit: u64 = std::env::args().nth(1).unwrap().parse().unwrap();
    let which = std::env::args().nth(2).unwrap();
    for f in which.chars() {
        let text = std::fs::read_to_string(format!("/work/shared/data/dsa/{f}.1048576.csv")).unwrap();
        let items: Vec<(u64,u64,u64)> = text.lines().skip(1).map(|l| { let v: Vec<u64> = l.split(',').map(|x| x.parse().unwrap()).collect(); (v[1],v[2],v[3]) }).collect();
        for order in 0..3 {
            let t = std::time::Instant::now();
            let r = zbmd_scheduler::offsets::trial(&items, 1048576, order, limit);
            println!("{f} {order} {r:?} {:.3}s", t.elapsed().as_secs_f64());
        }
    }
}
