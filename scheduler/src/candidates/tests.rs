//! Which devices are seen, and bounds for numbers of them.

use super::*;

#[test]
fn numbers_of_devices_grow_from_one_to_all() {
    assert_eq!(device_counts(0).count(), 0);
    for devices in [1, 2, 63, 64, 65, 79, 80, 81, 1024, 1 << 20] {
        let counts: Vec<usize> = device_counts(devices).collect();
        assert!(counts.is_sorted_by(|a, b| a < b), "{counts:?}");
        assert_eq!(counts.first(), Some(&1));
        assert_eq!(counts.last(), Some(&devices));
        let all = devices.min(ALL_DEVICES);
        assert!(counts[..all].iter().copied().eq(1..=all), "{counts:?}");
        assert!(counts.len() <= ALL_DEVICES + 48, "{}", counts.len());
    }
}
