//! A world of one: sums are the values themselves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::collective::{Collective, Error, GradientBuffer};
use crate::units::{Rank, WorldSize};

/// The group of rank 0 alone.
pub fn alone() -> Arc<dyn Collective> {
    Arc::new(Solo::default())
}

#[derive(Default)]
struct Solo {
    given: AtomicBool,
    aborted: Mutex<Option<String>>,
}

impl Solo {
    fn check(&self) -> Result<(), Error> {
        match &*self.aborted.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(Error::Aborted { by: Rank(0), reason: reason.clone() }),
            None => Ok(()),
        }
    }
}

impl Collective for Solo {
    fn rank(&self) -> Rank {
        Rank(0)
    }

    fn world_size(&self) -> WorldSize {
        WorldSize::ONE
    }

    fn segments(&self, lengths: &[usize]) -> Result<Vec<GradientBuffer>, Error> {
        if self.given.swap(true, Ordering::Relaxed) {
            return Err(Error::mapping("its segments were already given out"));
        }
        Ok(lengths.iter().enumerate().map(|(index, &n)| GradientBuffer::new(index, n)).collect())
    }

    fn all_reduce(&self, _segment: &mut GradientBuffer) -> Result<(), Error> {
        self.check()
    }

    fn broadcast(&self, _bytes: &mut [u8]) -> Result<(), Error> {
        self.check()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.check()?;
        Ok(vec![mine.to_vec()])
    }

    fn barrier(&self) -> Result<(), Error> {
        self.check()
    }

    fn abort(&self, reason: &str) {
        let mut aborted = self.aborted.lock().unwrap_or_else(PoisonError::into_inner);
        aborted.get_or_insert_with(|| reason.to_owned());
    }

    /// A world of one never waits.
    fn give_up(&self) {}
}
