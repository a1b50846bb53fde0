//! Messages between ranks, written and read in the same order.

/// A message in the making.
#[derive(Debug, Default)]
pub struct Writer(Vec<u8>);

/// What is left to read of a message. It comes from the same program, so that what is missing is a bug.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl Writer {
    pub fn count(&mut self, value: usize) {
        self.0.extend((value as u64).to_le_bytes());
    }

    /// Bit for bit, also what is no number.
    pub fn number(&mut self, value: f64) {
        self.0.extend(value.to_bits().to_le_bytes());
    }

    pub fn numbers(&mut self, values: &[f64]) {
        self.count(values.len());
        values.iter().for_each(|value| self.number(*value));
    }

    pub fn floats(&mut self, values: &[f32]) {
        self.count(values.len());
        let start = self.0.len();
        self.0.resize(start + 4 * values.len(), 0);
        for (bytes, value) in self.0[start..].as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.extend(bytes);
    }

    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

impl<'a> Reader<'a> {
    pub fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self, size: usize) -> &'a [u8] {
        let (taken, left) = self.0.split_at_checked(size).expect("as long as it was written");
        self.0 = left;
        taken
    }

    pub fn count(&mut self) -> usize {
        u64::from_le_bytes(self.take(8).try_into().expect("eight bytes")) as usize
    }

    pub fn number(&mut self) -> f64 {
        f64::from_bits(u64::from_le_bytes(self.take(8).try_into().expect("eight bytes")))
    }

    pub fn numbers(&mut self) -> Vec<f64> {
        (0..self.count()).map(|_| self.number()).collect()
    }

    pub fn floats(&mut self) -> Vec<f32> {
        let count = self.count();
        self.take(4 * count).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    pub fn bytes(&mut self) -> &'a [u8] {
        let count = self.count();
        self.take(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::default();
        writer.count(7);
        writer.number(f64::NAN);
        writer.numbers(&[0.1, -0.0]);
        writer.floats(&[f32::INFINITY, 1.5]);
        writer.bytes(b"text");
        writer.floats(&[]);
        let bytes = writer.done();
        let mut reader = Reader::of(&bytes);
        assert_eq!(reader.count(), 7);
        assert_eq!(reader.number().to_bits(), f64::NAN.to_bits());
        assert_eq!(reader.numbers().iter().map(|x| x.to_bits()).collect::<Vec<_>>(), [0.1f64, -0.0].map(f64::to_bits));
        assert_eq!(reader.floats(), [f32::INFINITY, 1.5]);
        assert_eq!((reader.bytes(), reader.floats(), reader.0), (&b"text"[..], vec![], &[][..]));
    }
}
