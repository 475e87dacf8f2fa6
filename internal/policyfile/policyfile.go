// Package policyfile reads policy files and directories of them from disk.
package policyfile

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
)

// MaxTotalBytes bounds what all policy files hold together: each look of a Watcher reads them all.
const MaxTotalBytes = 64 << 20

// Read returns the policy files that paths name: each file, and of each directory its *.yaml, *.yml and *.json, sorted
// by name. Directories below it and names that begin with a dot are skipped, so that a mounted ConfigMap, whose ..data
// holds every file once more, reads as what it shows. A file that is named twice is read once.
//
// The error joins one line for every path that is missing, unreadable, neither file nor directory, larger than
// descriptors.MaxDropInFileBytes (descriptors.Parse has a smaller bound for native files), or a directory without policy
// files; or says that all files together hold more than MaxTotalBytes.
func Read(paths []string) ([]descriptors.File, error) {
	var files []descriptors.File
	var problems []error
	seen := make(map[string]bool)
	total := 0
	for _, path := range paths {
		names, err := expand(filepath.Clean(path))
		if err != nil {
			problems = append(problems, err)
		}
		for _, name := range names {
			if seen[name] {
				continue
			}
			seen[name] = true
			data, err := read(name)
			if err != nil {
				problems = append(problems, err)
				continue
			}
			if total += len(data); total > MaxTotalBytes {
				return nil, fmt.Errorf("%s: the policy files up to this one hold more than %d bytes together; name fewer", name, MaxTotalBytes)
			}
			files = append(files, descriptors.File{Name: name, Data: data})
		}
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return files, nil
}

// expand returns path itself, or the policy files of the directory that it names.
func expand(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, problem(path, err)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // sorted by name
	if err != nil {
		return nil, problem(path, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") || !isPolicy(e.Name()) {
			continue
		}
		names = append(names, filepath.Join(path, e.Name()))
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: no policy file in this directory; add a *.yaml, *.yml or *.json file, or name another path", path)
	}
	return names, nil
}

func isPolicy(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

func read(name string) ([]byte, error) {
	// Before opening: a pipe would wait for a writer for ever.
	info, err := os.Stat(name)
	if err != nil {
		return nil, problem(name, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file; name a policy file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, problem(name, err)
	}
	data, err := io.ReadAll(io.LimitReader(f, descriptors.MaxDropInFileBytes+1))
	if err := cmp.Or(err, f.Close()); err != nil {
		return nil, problem(name, err)
	}
	if len(data) > descriptors.MaxDropInFileBytes {
		return nil, fmt.Errorf("%s: more than %d bytes; split it: one domain may stand in several files", name, descriptors.MaxDropInFileBytes)
	}
	return data, nil
}

// problem says in one line what is wrong with a path.
func problem(path string, err error) error {
	hint := "check its permissions"
	if errors.Is(err, fs.ErrNotExist) {
		hint = "name an existing file or directory"
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // without the path, which stands first
	}
	return fmt.Errorf("%s: %w; %s", path, err, hint)
}
