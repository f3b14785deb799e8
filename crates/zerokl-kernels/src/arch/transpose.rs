//! Four rows of four numbers to four columns: moves only.

/// `to[k][r] = rows[r][k]`
#[inline(always)]
pub fn transpose_4x4(rows: [&[f32; 4]; 4]) -> [[f32; 4]; 4] {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64; pointers come from references to arrays of four.
    unsafe {
        use std::arch::x86_64::*;
        let [a, b, c, d] = rows.map(|row| _mm_loadu_ps(row.as_ptr()));
        let (ab_low, ab_high) = (_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let (cd_low, cd_high) = (_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        let columns = [
            _mm_movelh_ps(ab_low, cd_low),
            _mm_movehl_ps(cd_low, ab_low),
            _mm_movelh_ps(ab_high, cd_high),
            _mm_movehl_ps(cd_high, ab_high),
        ];
        let mut to = [[0.0; 4]; 4];
        for (to, column) in to.iter_mut().zip(columns) {
            _mm_storeu_ps(to.as_mut_ptr(), column);
        }
        to
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::array::from_fn(|k| rows.map(|row| row[k]))
}

#[test]
fn rows_become_columns() {
    let rows: [[f32; 4]; 4] = std::array::from_fn(|r| std::array::from_fn(|k| (10 * r + k) as f32));
    let columns = transpose_4x4(rows.each_ref());
    assert!((0..16).all(|i| columns[i % 4][i / 4] == rows[i / 4][i % 4]));
}
