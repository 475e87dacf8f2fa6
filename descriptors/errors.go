package descriptors

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// PolicyError is one problem in the policies: where it is, what is wrong and how to mend it.
type PolicyError struct {
	File    string // as in File.Name; empty: not about one file
	Line    int    // 1-based; 0: the file as a whole
	Path    string // the YAML path, as endpoints."orders.create".limits[0].capacity; empty: the file as a whole
	Problem string
	Hint    string // empty: the problem says it all
}

// Error returns "file:line: path: problem; hint", without the parts that are empty.
func (e *PolicyError) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Path != "" {
		b.WriteString(e.Path)
		b.WriteString(": ")
	}
	b.WriteString(e.Problem)
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// maxProblems bounds what one Parse reports: a file of nothing but mistakes must not cost a hundred times its size.
const maxProblems = 1000

// problems collects what is wrong over all files.
type problems struct {
	list     []problem
	withheld int // beyond maxProblems
}

type problem struct {
	*PolicyError
	file int // position of its file among the files given
}

func (p *problems) add(file int, e *PolicyError) {
	if len(p.list) == maxProblems {
		p.withheld++
		return
	}
	p.list = append(p.list, problem{e, file})
}

// err joins the problems by file and line; nil when there are none.
func (p *problems) err() error {
	sorted := p.sorted()
	errs := make([]error, len(sorted))
	for i, e := range sorted {
		errs[i] = e
	}
	return errors.Join(errs...)
}

// sorted returns the problems by file and line.
func (p *problems) sorted() []*PolicyError {
	slices.SortStableFunc(p.list, func(a, b problem) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.Line, b.Line))
	})
	all := make([]*PolicyError, 0, len(p.list)+1)
	for _, e := range p.list {
		all = append(all, e.PolicyError)
	}
	if p.withheld > 0 {
		all = append(all, &PolicyError{Problem: fmt.Sprintf("%d further problems are not shown", p.withheld)})
	}
	return all
}

// quote quotes text from a file for a message: one line, printable, no more than its beginning.
func quote(text string) string { return strconv.Quote(beginning(text)) }

// printable is quote without the quotes, for numbers and names that stood without them.
func printable(text string) string {
	quoted := quote(text)
	return quoted[1 : len(quoted)-1]
}

func beginning(text string) string {
	const most = 40
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// nearest returns the word that was probably meant, or "".
func nearest(word string, words []string) string {
	if len(word) > 64 {
		return ""
	}
	best, least := "", 1+max(1, len(word)/3)
	for _, w := range words {
		if d := distance(strings.ToLower(word), w); d < least {
			best, least = w, d
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// pick is the hint for a wrong word: the one probably meant, else all there are. Empty names are no words.
func pick(word string, words []string) string {
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "" })
	if w := nearest(word, words); w != "" {
		return fmt.Sprintf("did you mean %s?", w)
	}
	return "use one of: " + strings.Join(words, ", ")
}
