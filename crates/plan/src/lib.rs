#![doc = include_str!("../README.md")]

pub mod terminal;
pub mod config;
pub mod plan;
