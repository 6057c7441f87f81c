//! Recordings -> samples between -1 and 1, the mean over the channels: WAV, FLAC, OGG Vorbis and
//! MP3, told apart by what they hold.

use std::io;
use std::path::Path;

use symphonia::core::codecs::CodecParameters;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::{Error, SeekErrorKind};
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::well_known::FORMAT_ID_MP3;
use symphonia::core::formats::{FormatOptions, FormatReader, SeekMode, SeekTo, TrackType};
use symphonia::core::io::{MediaSource, MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;
use symphonia::core::units::Timestamp;

use crate::data::{SampleError, catch_panic, open_file};
use crate::wav::Wav;

/// Endings of the names of recordings.
const ENDINGS: [&str; 5] = ["wav", "flac", "ogg", "oga", "mp3"];

/// Samples a second that speech may have: what the mel features of more would need, in memory and
/// time, is for a damaged header to ask.
const RATES: std::ops::RangeInclusive<u32> = 1_000..=768_000;
/// Samples that are decoded before those that are wanted: a frame of MP3 or Vorbis needs those
/// before it.
const PREROLL: usize = 16 << 10;

/// Samples a second, and samples of each channel; of an MP3 file without a count, as many as its
/// size lets expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) rate: u32,
    pub(crate) samples: usize,
}

/// A part of a recording in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) offset: f64,
    pub(crate) duration: f64,
}

/// True if a file of this name should be a recording.
pub(crate) fn is_named_so(path: &Path) -> bool {
    path.extension()
        .is_some_and(|kind| ENDINGS.iter().any(|ending| kind.eq_ignore_ascii_case(ending)))
}

/// Reads the header of the recording at `path`, and no more of the file than that needs.
pub(crate) fn header(path: &Path) -> Result<Header, SampleError> {
    reading(path, |mut recording| {
        let samples = match recording.samples {
            Some(samples) => samples,
            None => recording.counted()?,
        };
        Ok(Header { rate: recording.rate, samples: usize::try_from(samples).unwrap_or(usize::MAX) })
    })
}

/// Rate and samples of `span` of the recording, all if there is none; at most `seconds`.
pub(crate) fn samples(
    path: &Path,
    span: Option<Span>,
    seconds: f64,
) -> Result<(u32, Vec<f32>), SampleError> {
    reading(path, |mut recording| {
        let rate = recording.rate;
        let of = |seconds: f64| (seconds * f64::from(rate)).min(1e15) as usize;
        let start = span.map_or(0, |span| of(span.offset));
        let most = span.map_or(seconds, |span| span.duration.min(seconds));
        // A duration that was rounded to fewer digits still means its last sample.
        Ok((rate, recording.decoded(start, of(most + 1e-6))?))
    })
}

/// Why a recording cannot be used.
enum RecordingError {
    Io(io::Error),
    Content(String),
}

impl From<Error> for RecordingError {
    fn from(error: Error) -> Self {
        match error {
            Error::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Content("it is cut short".to_owned())
            }
            Error::IoError(error) => Self::Io(error),
            other => Self::Content(other.to_string()),
        }
    }
}

/// Applies `work` to the recording at `path`; a device error (EIO) is tried once more.
fn reading<T>(
    path: &Path,
    work: impl Fn(Recording) -> Result<T, RecordingError>,
) -> Result<T, SampleError> {
    // The decoders are a library's; what they panic about is an error like their others.
    let once = || catch_panic(|| Ok(Recording::open(path).and_then(&work)));
    let mut found = once();
    if let Ok(Err(RecordingError::Io(error))) = &found
        && error.raw_os_error() == Some(libc::EIO)
    {
        found = once();
    }
    let unusable = |reason| SampleError::Decode { path: path.into(), reason };
    match found.map_err(unusable)? {
        Ok(value) => Ok(value),
        Err(RecordingError::Io(source)) => Err(SampleError::Io { path: path.into(), source }),
        Err(RecordingError::Content(reason)) => Err(unusable(reason)),
    }
}

/// An open recording.
struct Recording {
    format: Box<dyn FormatReader>,
    codec: AudioCodecParameters,
    track: u32,
    rate: u32,
    /// Samples of each channel, as far as the file says.
    samples: Option<u64>,
}

impl Recording {
    fn open(path: &Path) -> Result<Self, RecordingError> {
        let mut file = open_file(path).map_err(RecordingError::Io)?;
        let source: Box<dyn MediaSource> = match Wav::open(&mut file).map_err(RecordingError::Io)? {
            Some(wav) => Box::new(wav),
            None => Box::new(file),
        };
        let source = MediaSourceStream::new(source, MediaSourceStreamOptions::default());
        let format = FormatOptions::default();
        let meta = MetadataOptions::default();
        let probe = symphonia::default::get_probe();
        let format =
            probe.probe(&Hint::new(), source, format, meta).map_err(|error| match error {
                Error::Unsupported(_) => {
                    RecordingError::Content("it is no WAV, FLAC, OGG or MP3 recording".to_owned())
                }
                error => error.into(),
            })?;
        let nothing = || RecordingError::Content("it holds no sound".to_owned());
        let track = format.first_track(TrackType::Audio).ok_or_else(nothing)?;
        let codec = track.codec_params.as_ref().and_then(CodecParameters::audio);
        let codec = codec.ok_or_else(nothing)?.clone();
        let rate = codec.sample_rate.unwrap_or(0);
        if !RATES.contains(&rate) {
            let low = RATES.start();
            let high = RATES.end();
            let what = format!("its sample rate of {rate} Hz is not between {low} and {high}");
            return Err(RecordingError::Content(what));
        }
        if symphonia::default::get_codecs().get_audio_decoder(codec.codec).is_none() {
            let what = "it is coded in a way that is not read, such as Opus: convert it to FLAC";
            return Err(RecordingError::Content(what.to_owned()));
        }
        let (track, samples) = (track.id, track.num_frames);
        Ok(Self { format, codec, track, rate, samples })
    }

    /// True if the number of its samples is counted, false if it is an estimate.
    fn is_counted(&self) -> bool {
        self.format.format_info().format != FORMAT_ID_MP3
    }

    /// The samples of all packets, none of which is decoded.
    fn counted(&mut self) -> Result<u64, RecordingError> {
        let mut samples = 0u64;
        while let Some(packet) = self.packet()? {
            samples = samples.saturating_add(packet.dur.get());
        }
        Ok(samples)
    }

    /// The next packet of its sound.
    fn packet(&mut self) -> Result<Option<Packet>, Error> {
        loop {
            match self.format.next_packet()? {
                Some(packet) if packet.track_id != self.track => {}
                found => return Ok(found),
            }
        }
    }

    /// `most` samples from `start` on, fewer where it ends before.
    fn decoded(&mut self, start: usize, most: usize) -> Result<Vec<f32>, RecordingError> {
        let total = self.samples.filter(|_| self.is_counted());
        if let Some(total) = total.filter(|&total| start > 0 && start as u64 >= total) {
            let seconds = |samples: u64| samples as f64 / f64::from(self.rate);
            let start = seconds(start as u64);
            let length = seconds(total);
            let what = format!("it is {length:.3} s long, and its part begins at {start:.3} s");
            return Err(RecordingError::Content(what));
        }
        if start > PREROLL {
            self.seek(start - PREROLL)?;
        }
        let options = AudioDecoderOptions::default();
        let codecs = symphonia::default::get_codecs();
        let mut decoder = codecs.make_audio_decoder(&self.codec, &options)?;
        let samples = self.collected(&mut *decoder, start, most)?;
        let there = total.map_or(0, |total| total.saturating_sub(start as u64));
        if (samples.len() as u64) < there.min(most as u64) {
            let n = start + samples.len();
            let what =
                format!("it is cut short: it ends after {n} of {} samples", total.unwrap_or(0));
            return Err(RecordingError::Content(what));
        }
        if let Some(at) = samples.iter().position(|sample| !sample.is_finite()) {
            let value = samples[at];
            let seconds = (start + at) as f64 / f64::from(self.rate);
            return Err(RecordingError::Content(format!(
                "its sample at {seconds:.3} s is {value}"
            )));
        }
        Ok(samples)
    }

    fn seek(&mut self, to: usize) -> Result<(), RecordingError> {
        let to = SeekTo::Timestamp { ts: Timestamp::new(to as i64), track_id: self.track };
        match self.format.seek(SeekMode::Accurate, to) {
            Ok(_) => Ok(()),
            Err(Error::SeekError(SeekErrorKind::OutOfRange)) => {
                Err(RecordingError::Content("it ends before its part begins".to_owned()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Samples from `start` on of what is decoded from here.
    fn collected(
        &mut self,
        decoder: &mut dyn AudioDecoder,
        start: usize,
        most: usize,
    ) -> Result<Vec<f32>, RecordingError> {
        let mut samples = Vec::new();
        let mut frames = Vec::<f32>::new();
        while samples.len() < most {
            let packet = match self.packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => break,
                Err(Error::IoError(error)) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error.into()),
            };
            // Where the packet's first sample stands that is not trimmed.
            let at = packet.pts.saturating_add(packet.trim_start).get();
            let is_wanted = at.saturating_add(packet.dur.get() as i64) > start as i64;
            match decoder.decode(&packet) {
                Ok(decoded) => {
                    let channels = decoded.spec().channels().count().max(1);
                    decoded.copy_to_vec_interleaved(&mut frames);
                    let skipped = usize::try_from(start as i64 - at).unwrap_or(0);
                    let mean = |frame: &[f32]| frame.iter().sum::<f32>() / frame.len() as f32;
                    let wanted = frames.chunks_exact(channels).skip(skipped);
                    let room = most - samples.len();
                    samples.extend(wanted.take(room).map(mean));
                }
                // What stands before the part may need what stands before it in turn.
                Err(Error::DecodeError(_)) if !is_wanted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(samples)
    }
}
