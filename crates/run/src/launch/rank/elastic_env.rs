//! The variables that torchrun reads in place of its flags, `PET_*`: Kubeflow's pods have them.

use crate::launch::rank::launcher_env::TOKEN_FILE;
use crate::launch::rank::launcher_env::{EnvError, number};

/// Values of these variables, by the flags of ddprun that mean the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ElasticFlags {
    /// `--nnodes`
    pub nnodes: Option<u32>,
    /// `--node-rank`
    pub node_rank: Option<u32>,
    /// `--nproc-per-node`; absent where torchrun would count devices.
    pub nproc_per_node: Option<String>,
    /// `--master-addr`
    pub master_addr: Option<String>,
    /// `--master-port`
    pub master_port: Option<u16>,
    /// `--rdzv-endpoint`
    pub rdzv_endpoint: Option<String>,
    /// `--token-file`, which torchrun does not have.
    pub token_file: Option<String>,
}

/// Reads the variables.
///
/// # Errors
///
/// A variable is no number, or `PET_NNODES` allows several.
pub(super) fn parse(get: impl Fn(&str) -> Option<String>) -> Result<ElasticFlags, EnvError> {
    const PORT: &str = "PET_MASTER_PORT";
    let port = number(&get, PORT)?.map(|port| {
        let (value, expected) = (port.to_string(), "a port".to_owned());
        u16::try_from(port).map_err(|_| EnvError::Bad { name: PORT, value, expected })
    });
    let counts_devices = |value: &String| ["auto", "gpu", "cpu"].contains(&value.as_str());
    Ok(ElasticFlags {
        nnodes: nodes(&get)?,
        node_rank: number(&get, "PET_NODE_RANK")?,
        nproc_per_node: get("PET_NPROC_PER_NODE").filter(|value| !counts_devices(value)),
        master_addr: get("PET_MASTER_ADDR"),
        master_port: port.transpose()?,
        rdzv_endpoint: get("PET_RDZV_ENDPOINT"),
        token_file: get(TOKEN_FILE),
    })
}

fn nodes(get: &impl Fn(&str) -> Option<String>) -> Result<Option<u32>, EnvError> {
    const NODES: &str = "PET_NNODES";
    let Some(value) = get(NODES) else { return Ok(None) };
    let fixed = match value.split_once(':') {
        Some((least, most)) if least == most => most,
        _ => &value,
    };
    let fixed = fixed.parse().ok().filter(|nodes| *nodes > 0);
    let expected = "a fixed number of nodes, which ddprun needs".to_owned();
    fixed.map(Some).ok_or_else(|| EnvError::Bad { name: NODES, value: value.clone(), expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::rank::env::variables;

    fn found(environment: &str) -> Result<ElasticFlags, String> {
        parse(variables(environment)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_pod_of_a_train_job_says_its_place() {
        let pod = "PET_NNODES=2 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job \
                   PET_MASTER_PORT=29400 PET_NPROC_PER_NODE=4 DDPRUN_TOKEN_FILE=t";
        let flags = ElasticFlags {
            nnodes: Some(2),
            node_rank: Some(1),
            nproc_per_node: Some("4".to_owned()),
            master_addr: Some("job-node-0-0.job".to_owned()),
            master_port: Some(29_400),
            rdzv_endpoint: None,
            token_file: Some("t".to_owned()),
        };
        assert_eq!(found(pod), Ok(flags));
        assert_eq!(found(""), Ok(ElasticFlags::default()));
    }

    #[test]
    fn devices_that_torchrun_would_count_and_fixed_ranges_are_understood() {
        let counted = found("PET_NPROC_PER_NODE=auto PET_NNODES=2:2").unwrap();
        assert_eq!((counted.nproc_per_node, counted.nnodes), (None, Some(2)));
    }

    #[test]
    fn machines_that_come_and_go_are_refused_in_words() {
        let words = "`PET_NNODES=1:3` in the environment is not a fixed number of nodes, which \
                     ddprun needs";
        assert_eq!(found("PET_NNODES=1:3"), Err(words.to_owned()));
        let words = "`PET_MASTER_PORT=70000` in the environment is not a port";
        assert_eq!(found("PET_MASTER_PORT=70000"), Err(words.to_owned()));
    }
}
