use zbmd_scheduler::offsets::*;
fn show(name: &str, items: &[Item], limits: &Limits) -> f64 {
    let cpu = || {
        std::fs::read_to_string("/proc/thread-self/schedstat")
            .unwrap()
            .split(' ')
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
            * 1e-9
    };
    let t = cpu();
    let r = solve(items, limits).unwrap();
    let s = cpu() - t;
    println!(
        "{name} n {} size {} lb {} gap {:.4} nodes {} {:.3}s",
        items.len(),
        r.size,
        r.lower_bound,
        r.gap(),
        r.nodes,
        s
    );
    r.gap()
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let limits =
        Limits { capacity: a.get(3).map(|x| x.parse().unwrap()), steps: a[1].parse().unwrap() };
    for f in a[2].chars() {
        if f.is_ascii_uppercase() {
            let dir = std::env::var("D").unwrap_or("/work/shared/data/dsa".into());
            let text = std::fs::read_to_string(format!("{dir}/{f}.1048576.csv")).unwrap();
            let items: Vec<Item> = text
                .lines()
                .skip(1)
                .map(|l| {
                    let v: Vec<u64> = l.split(',').map(|x| x.parse().unwrap()).collect();
                    Item::new(v[1], v[2], v[3])
                })
                .collect();
            show(&f.to_string(), &items, &limits);
        } else {
            let mut sum = 0.0;
            let k = 10;
            for seed in 0..k {
                let mut x = seed * 7919 + 12345u64;
                let mut rnd = |m: u64| {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    x % m
                };
                for _ in 0..10 {
                    rnd(2);
                }
                let n = match f {
                    'a' => 20,
                    'b' => 60,
                    'c' => 200,
                    'd' => 1000,
                    'e' => 3000,
                    'f' => 200,
                    'g' => 1000,
                    'h' => 100_000,
                    'i' => 100_000,
                    _ => 60_000,
                };
                let items: Vec<Item> = (0..n)
                    .map(|i| {
                        let (s, l, z) = match f {
                            'a'..='e' => {
                                let a = rnd(n);
                                let b = rnd(n);
                                (a.min(b), a.abs_diff(b) + 1, rnd(1000) + 1)
                            }
                            'f' | 'g' => (rnd(n), 1 + rnd(20) * rnd(20) / 10, 64 << rnd(8)),
                            'h' => (i, 1 + rnd(100), 64 * (1 + rnd(1000))),
                            'i' => {
                                let a = rnd(n);
                                let b = rnd(n);
                                (a.min(b), a.abs_diff(b) + 1, rnd(100000) + 1)
                            }
                            _ => (i, if rnd(10) == 0 { 1 + rnd(10_000) } else { 1 + rnd(20) }, {
                                let b = rnd(12);
                                512 * (1 + rnd(1 << b))
                            }),
                        };
                        Item::new(s, s + l, z)
                    })
                    .collect();
                sum += show(&format!("{f}{seed}"), &items, &limits);
                if n > 50000 && seed == 1 {
                    break;
                }
            }
            println!("mean {}", sum / k as f64);
        }
    }
}
