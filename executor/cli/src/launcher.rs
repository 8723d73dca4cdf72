//! Which of the processes of a run this one is, as whatever started them all says by its environment.

use clap::ValueEnum;

/// What has started the processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Launcher {
    /// Whichever of the others is found, in their order.
    Auto,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH, and whatever else has PMI.
    Pmi,
    /// `srun`.
    Slurm,
    /// A Job with indices, or a StatefulSet.
    Kubernetes,
}

/// The place of this process among those of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// From 0.
    pub(super) number: u32,
    /// Of all processes, if the launcher says.
    pub(super) count: Option<u32>,
    /// The name of the computer on which number 0 runs, if the launcher says.
    pub(super) first_host: Option<String>,
}

/// Why there is no place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum LauncherError {
    #[error(
        "no launcher has started this process: none of {looked_for} is set; start it by srun, mpirun or Kubernetes, or leave --launcher out"
    )]
    None { looked_for: String },
    #[error("{name} is `{found}`, which is not {expected}")]
    Value {
        name: &'static str,
        found: String,
        expected: &'static str,
    },
    #[error(
        "{number_name} is {number} and {count_name} is {count}: processes are counted from 0, so the last one is {}",
        i64::from(*count) - 1
    )]
    Outside {
        number_name: &'static str,
        number: u32,
        count_name: &'static str,
        count: u32,
    },
}

/// What a launcher sets.
struct Variables {
    number: &'static str,
    count: &'static str,
    /// Computers of the run in the order of its processes.
    hosts: &'static [&'static str],
}

const OPEN_MPI: Variables = Variables {
    number: "OMPI_COMM_WORLD_RANK",
    count: "OMPI_COMM_WORLD_SIZE",
    hosts: &[],
};
const PMI: Variables = Variables {
    number: "PMI_RANK",
    count: "PMI_SIZE",
    hosts: &[],
};
const SLURM: Variables = Variables {
    number: "SLURM_PROCID",
    count: "SLURM_NTASKS",
    hosts: &["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"],
};
/// The index of a pod of a Job.
const JOB_INDEX: &str = "JOB_COMPLETION_INDEX";
/// In every pod.
const KUBERNETES_SERVICE: &str = "KUBERNETES_SERVICE_HOST";
const POD_NAME: &str = "HOSTNAME";

/// The value of a variable of the environment.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Launcher {
    /// The place of this process.
    ///
    /// # Errors
    /// It was not started so, or what the environment says is no place.
    pub(super) fn place(self, lookup: Lookup<'_>) -> Result<Place, LauncherError> {
        // `mpirun` in a job of Slurm's leaves the variables of Slurm as they were before it.
        let order = match self {
            Self::Auto => &[Self::OpenMpi, Self::Pmi, Self::Slurm, Self::Kubernetes][..],
            _ => std::slice::from_ref(&self),
        };
        for launcher in order {
            let found = match launcher {
                Self::OpenMpi => OPEN_MPI.place(lookup)?,
                Self::Pmi => PMI.place(lookup)?,
                Self::Slurm => SLURM.place(lookup)?,
                Self::Kubernetes => pod_place(lookup, *launcher == self)?,
                Self::Auto => None,
            };
            if let Some(place) = found {
                return Ok(place);
            }
        }
        let looked_for = order.iter().map(|launcher| launcher.number_variable());
        Err(LauncherError::None {
            looked_for: looked_for.collect::<Vec<_>>().join(", "),
        })
    }

    fn number_variable(self) -> &'static str {
        match self {
            Self::OpenMpi => OPEN_MPI.number,
            Self::Pmi => PMI.number,
            Self::Slurm => SLURM.number,
            Self::Kubernetes | Self::Auto => JOB_INDEX,
        }
    }
}

impl Variables {
    fn place(&self, lookup: Lookup<'_>) -> Result<Option<Place>, LauncherError> {
        let Some(number) = number_in(lookup, self.number)? else {
            return Ok(None);
        };
        let count = number_in(lookup, self.count)?;
        if let Some(count) = count.filter(|count| number >= *count) {
            return Err(LauncherError::Outside {
                number_name: self.number,
                number,
                count_name: self.count,
                count,
            });
        }
        let hosts = self.hosts.iter().find_map(|name| lookup(name));
        Ok(Some(Place {
            number,
            count,
            first_host: hosts.map(|hosts| first_of_list(&hosts)),
        }))
    }
}

/// The index of a pod of a Job, or the ordinal with which the name of a pod of a StatefulSet ends. A name that could be any
/// computer's is asked only where this is Kubernetes.
fn pod_place(lookup: Lookup<'_>, is_asked_for: bool) -> Result<Option<Place>, LauncherError> {
    let mut number = number_in(lookup, JOB_INDEX)?;
    let is_pod = is_asked_for || lookup(KUBERNETES_SERVICE).is_some();
    if let (None, true, Some(name)) = (number, is_pod, lookup(POD_NAME)) {
        let ordinal = name.rsplit_once('-').map(|(_, ordinal)| ordinal);
        let parsed = ordinal.and_then(|ordinal| ordinal.parse().ok());
        let invalid = || LauncherError::Value {
            name: POD_NAME,
            found: name.clone(),
            expected: "the name of a pod of a StatefulSet, which ends with its number: NAME-2",
        };
        number = Some(parsed.ok_or_else(invalid)?);
    }
    Ok(number.map(|number| Place {
        number,
        count: None,
        first_host: None,
    }))
}

fn number_in(lookup: Lookup<'_>, name: &'static str) -> Result<Option<u32>, LauncherError> {
    let Some(found) = lookup(name) else {
        return Ok(None);
    };
    match found.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(LauncherError::Value {
            name,
            found,
            expected: "a number from 0",
        }),
    }
}

/// The first name of a list as Slurm writes it: `node[03-07,12],gpu1` begins with `node03`.
fn first_of_list(list: &str) -> String {
    let mut first = String::new();
    let mut rest = list;
    while let Some(position) = rest.find(['[', ',']) {
        first.push_str(&rest[..position]);
        let Some(range) = rest[position..].strip_prefix('[') else {
            return first;
        };
        let number_end = range.find(['-', ',', ']']).unwrap_or(range.len());
        first.push_str(&range[..number_end]);
        rest = range.split_once(']').map_or("", |(_, after)| after);
    }
    first + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(launcher: Launcher, variables: &[(&str, &str)]) -> Result<Place, LauncherError> {
        launcher.place(&|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[track_caller]
    fn check(variables: &[(&str, &str)], number: u32, count: Option<u32>, first: Option<&str>) {
        let expected = Place {
            number,
            count,
            first_host: first.map(str::to_owned),
        };
        assert_eq!(place(Launcher::Auto, variables), Ok(expected));
    }

    #[test]
    fn each_launcher_says_the_place_in_its_own_way() {
        check(
            &[
                ("SLURM_PROCID", "2"),
                ("SLURM_NTASKS", "3"),
                ("SLURM_JOB_NODELIST", "node[1-9]"),
                ("SLURM_STEP_NODELIST", "node[2-4]"),
            ],
            2,
            Some(3),
            Some("node2"),
        );
        check(
            &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")],
            1,
            Some(2),
            None,
        );
        check(&[("PMI_RANK", "0"), ("PMI_SIZE", "4")], 0, Some(4), None);
        check(&[("JOB_COMPLETION_INDEX", "3")], 3, None, None);
        let pod = [
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("HOSTNAME", "zbmd-agent-1"),
        ];
        check(&pod, 1, None, None);
    }

    #[test]
    fn mpirun_in_a_job_of_slurms_is_asked_first() {
        let variables = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
        ];
        check(&variables, 1, Some(2), None);
        let by_slurm = place(Launcher::Slurm, &variables).expect("a place");
        assert_eq!((by_slurm.number, by_slurm.count), (0, Some(1)));
    }

    #[track_caller]
    fn check_error(launcher: Launcher, variables: &[(&str, &str)], expected: &str) {
        let error = place(launcher, variables).expect_err("no place");
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn what_is_no_place_is_refused_with_the_variables() {
        // The name of a computer that is no pod says nothing.
        check_error(
            Launcher::Auto,
            &[("HOSTNAME", "node-1")],
            "none of OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID, JOB_COMPLETION_INDEX is set",
        );
        check_error(
            Launcher::Slurm,
            &[("PMI_RANK", "1")],
            "none of SLURM_PROCID is set",
        );
        check_error(
            Launcher::Pmi,
            &[("PMI_RANK", "-1")],
            "PMI_RANK is `-1`, which is not a number from 0",
        );
        check_error(
            Launcher::Auto,
            &[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "2")],
            "OMPI_COMM_WORLD_RANK is 2 and OMPI_COMM_WORLD_SIZE is 2: processes are counted from 0, so the last one is 1",
        );
        check_error(
            Launcher::Kubernetes,
            &[("HOSTNAME", "zbmd-agent")],
            "HOSTNAME is `zbmd-agent`, which is not the name of a pod of a StatefulSet",
        );
    }

    #[test]
    fn the_first_computer_of_a_list() {
        for (list, first) in [
            ("node1", "node1"),
            ("node1,node2", "node1"),
            ("node[03-07,12],gpu1", "node03"),
            ("rack[1-2]node[5,7]-a,x", "rack1node5-a"),
            ("node[7", "node7"),
            ("", ""),
        ] {
            assert_eq!(first_of_list(list), first, "{list}");
        }
    }
}
