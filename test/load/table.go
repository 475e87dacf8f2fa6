package load

import (
	"fmt"
	"io"
	"strings"
)

// Table writes rows, the first of them the heads, as a Markdown table with aligned columns.
func Table(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for i, row := range rows {
		for c, cell := range row {
			fmt.Fprintf(w, "| %-*s ", widths[c], cell)
		}
		fmt.Fprintln(w, "|")
		if i == 0 {
			for _, width := range widths {
				fmt.Fprintf(w, "|%s", strings.Repeat("-", width+2))
			}
			fmt.Fprintln(w, "|")
		}
	}
}
