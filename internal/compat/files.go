package compat

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/descriptors"
	"github.com/sentinel-rls/sentinel-rls/internal/policyfile"
)

// Directory returns where the files are: RUNTIME_ROOT/RUNTIME_SUBDIRECTORY/RUNTIME_APPDIRECTORY.
func (r Runtime) Directory() string { return filepath.Join(r.Root, r.Subdirectory, r.AppDirectory) }

// Read returns every file of the directory and of those below it, whatever it is called, in the order of their paths. The
// directory itself may be a symbolic link; links to directories below it are not followed. Names that begin with two
// dots are how Kubernetes mounts a ConfigMap, which holds every file once more there: they are skipped, and with
// RUNTIME_IGNOREDOTFILES so are those with one.
//
// The error joins one line for every path that cannot be read, or says that there are no files: a directory that was not
// mounted must not mean that nothing is limited.
func (r Runtime) Read() ([]descriptors.File, error) {
	dir := r.Directory()
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; mount the files there, or set RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY", dir, bare(err))
	}
	var files []descriptors.File
	var problems []error
	total := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		shown := filepath.Join(dir, strings.TrimPrefix(path, root))
		switch {
		case err != nil:
			problems = append(problems, fmt.Errorf("%s: %w", shown, bare(err)))
			return nil
		case path == root:
			return nil
		case r.hidden(entry.Name()):
			if entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir():
			return nil
		}
		data, ok, err := readFile(path)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", shown, err))
		}
		if total += len(data); total > policyfile.MaxTotalBytes {
			problems = append(problems, fmt.Errorf("%s: the files up to this one hold more than %d bytes together", shown, policyfile.MaxTotalBytes))
			return fs.SkipAll
		}
		if ok {
			files = append(files, descriptors.File{Name: shown, Data: data})
		}
		return nil
	})
	if err = errors.Join(append(problems, err)...); err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: no files: nothing would be limited; mount them there, or set RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY", dir)
	}
	return files, nil
}

func (r Runtime) hidden(name string) bool {
	return strings.HasPrefix(name, "..") || r.IgnoreDotFiles && strings.HasPrefix(name, ".")
}

// readFile reads a file, or what a link leads to. False: that is no file.
func readFile(path string) (data []byte, ok bool, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, false, bare(err)
	}
	if !info.Mode().IsRegular() {
		return nil, false, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, false, bare(err)
	}
	defer f.Close()
	data, err = io.ReadAll(io.LimitReader(f, descriptors.MaxDropInFileBytes+1))
	if err != nil {
		return nil, false, bare(err)
	}
	return data, true, nil // one that is too large is refused as a file, with what to do
}

// bare leaves out the path, which stands first already.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}
