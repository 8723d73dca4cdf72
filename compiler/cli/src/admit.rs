//! `zbmdc admit`: whether bundles fit on one machine together.

use std::collections::BTreeSet;
use std::path::Path;

use zbmd_compiler::admit::{Admission, Demand};
use zbmd_compiler::{Code, read_machine};
use zbmd_ir::{Machine, bundle};

use crate::args::Admit;
use crate::inspect::refuse_bundle;
use crate::output::{Exit, Voice, print, say, single_error};

pub(crate) fn admit(args: &Admit, voice: Voice) -> Exit {
    let machine = match read_machine(&args.machine) {
        Ok((machine, _)) => machine,
        Err(diagnostics) => return voice.report(&diagnostics),
    };
    if let Err(exit) = check_rates(args) {
        return exit;
    }
    let demands = args.bundles.iter();
    let demands = demands.map(|path| demand(args, path, &machine, voice));
    let demands: Result<Vec<Demand>, Exit> = demands.collect();
    let admission = match demands {
        Ok(demands) => Admission::of(&demands, &machine),
        Err(exit) => return exit,
    };

    let exit = print(&(admission.table() + "\n" + &admission.interference_line()));
    for line in admission.failure_lines() {
        say(&format!("zbmdc: {line}\n"));
    }
    match exit {
        Exit::Ok if admission.failures().next().is_some() => Exit::Negative,
        exit => exit,
    }
}

/// What a bundle is called: its file without what follows the last dot.
fn name_of(bundle: &Path) -> String {
    let stem = bundle.file_stem().unwrap_or(bundle.as_os_str());
    stem.to_string_lossy().into_owned()
}

/// Every rate is one bundle's, and has no other.
fn check_rates(args: &Admit) -> Result<(), Exit> {
    let names: Vec<String> = args.bundles.iter().map(|path| name_of(path)).collect();
    let mut seen = BTreeSet::new();
    for (name, _) in &args.rates {
        if !names.contains(name) {
            let known = names.join(", ");
            say(&format!(
                "zbmdc: --rate {name}: there is no such bundle; there are {known}\n"
            ));
            return Err(Exit::Usage);
        }
        if !seen.insert(name) {
            say(&format!(
                "zbmdc: --rate {name} is given twice: leave one out\n"
            ));
            return Err(Exit::Usage);
        }
    }
    Ok(())
}

/// What one bundle takes. Where that cannot be said, the reason has been reported.
fn demand(args: &Admit, path: &Path, machine: &Machine, voice: Voice) -> Result<Demand, Exit> {
    let opened = bundle::open_modes_within(path, args.reading.max_structure_bytes());
    let modes = opened.map_err(|error| refuse_bundle(path, error, voice))?;
    let name = name_of(path);
    let rate = args.rates.iter().find(|(bundle, _)| *bundle == name);
    let rate = rate.map(|(_, rate)| *rate);
    Demand::of(&name, &modes, rate, machine).map_err(|error| {
        let message = format!("`{}`: {error}", path.display());
        let help = "`zbmdc inspect` shows its plans";
        voice.report(&single_error(Code::E0601, message, help))
    })
}
