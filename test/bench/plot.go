package main

import (
	"bytes"
	"fmt"
	"html"
)

// The plot, in pixels. Ratios lie between 0 and plotMost.
const (
	plotMost   = 1.6
	plotLeft   = 190 // of the bars; the names stand before
	plotWidth  = 460 // of plotMost
	plotRow    = 22
	plotBar    = 12
	plotBottom = 26 // for the scale
	plotRight  = 70 // for the values
)

// plot returns an SVG with a bar for each ratio: its median, a line from the least to the most of all rounds, and a mark at
// what must be reached. Its colours are readable on light and on dark pages.
func plot(all []Figure) []byte {
	var ratios []Figure
	for _, f := range all {
		if f.Digits == 2 && f.Value.Median > 0 {
			ratios = append(ratios, f)
		}
	}
	x := func(v float64) float64 { return plotLeft + plotWidth*min(v, plotMost)/plotMost }
	width, height := plotLeft+plotWidth+plotRight, len(ratios)*plotRow+plotBottom
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#808080">`+"\n",
		width, height, width, height)
	bottom := len(ratios) * plotRow
	for tick := 0; tick <= int(plotMost*10); tick += 2 {
		v := float64(tick) / 10
		fmt.Fprintf(&b, `<line x1="%.1f" y1="0" x2="%.1[1]f" y2="%d" stroke="#808080" stroke-opacity="0.25"/>`+"\n", x(v), bottom)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%.1f</text>`+"\n", x(v), bottom+16, v)
	}
	for i, f := range ratios {
		middle := float64(i*plotRow) + plotRow/2
		fmt.Fprintf(&b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", plotLeft-8, middle+4, html.EscapeString(f.Name))
		fmt.Fprintf(&b, `<rect x="%d" y="%.1f" width="%.1f" height="%d" fill="%s"/>`+"\n",
			plotLeft, middle-plotBar/2, x(f.Value.Median)-plotLeft, plotBar, colour(f.Verdict))
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1[2]f" stroke="#404040"/>`+"\n", x(f.Value.Min), middle, x(f.Value.Max))
		if f.Reach != nil {
			fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1[1]f" y2="%.1[3]f" stroke="#d08000" stroke-width="2"/>`+"\n", x(*f.Reach), middle-9, middle+9)
		}
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%s</text>`+"\n", x(max(f.Value.Median, f.Value.Max))+6, middle+4, f.text(f.Value.Median))
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func colour(v Verdict) string {
	switch v {
	case missed, void:
		return "#c04040"
	case notJudged:
		return "#a0a0a0"
	}
	return "#4080b0"
}
