//! Number types of the operands of products: f32, which any product takes, and bf16, which products of
//! bf16 numbers take as they are.

use super::bf16;
use super::left::{Columns, Rows};
use super::product::{Epilogue, Output, Packed, product};
use super::right::{ONLY_BF16, Packable, Panels};

/// f32; or bf16, in products of [`super::Format::Bf16`] only.
pub(in crate::ops) trait Factor: Packable {
    /// [`product()`] of rows.
    fn multiply_rows(
        rows: &mut Rows<'_, Self>,
        b: &Panels,
        out: Output<'_>,
        epilogue: &mut dyn Epilogue,
    );

    /// [`product()`] of columns.
    fn multiply_columns(columns: &mut Columns<'_, Self>, b: &Panels, out: Output<'_>);
}

impl Factor for f32 {
    fn multiply_rows(
        rows: &mut Rows<'_>,
        b: &Panels,
        out: Output<'_>,
        epilogue: &mut dyn Epilogue,
    ) {
        product(rows, b, out, epilogue);
    }

    fn multiply_columns(columns: &mut Columns<'_>, b: &Panels, out: Output<'_>) {
        product(columns, b, out, &mut ());
    }
}

impl Factor for half::bf16 {
    fn multiply_rows(
        rows: &mut Rows<'_, Self>,
        b: &Panels,
        out: Output<'_>,
        epilogue: &mut dyn Epilogue,
    ) {
        product_of_halves(rows, b, out, epilogue);
    }

    fn multiply_columns(columns: &mut Columns<'_, Self>, b: &Panels, out: Output<'_>) {
        product_of_halves(columns, b, out, &mut ());
    }
}

fn product_of_halves(
    left: &mut impl Packed,
    b: &Panels,
    out: Output<'_>,
    epilogue: &mut dyn Epilogue,
) {
    match b {
        Panels::Bf16(b) => bf16::product(left, b, out, epilogue),
        Panels::F32(_) => unreachable!("{ONLY_BF16}"),
    }
}
