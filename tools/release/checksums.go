package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
)

const checksumsFile = "checksums.txt"

// subject is a file of the release with its SHA-256.
type subject struct {
	Name   string
	SHA256 string // hex
}

// listReleaseFiles returns the files at the top of the release's folder, sorted by name. The subfolders have only what is packed
// into them.
func (r *release) listReleaseFiles() ([]subject, error) {
	dir, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	var files []subject
	for _, d := range dir {
		if d.IsDir() || d.Name() == checksumsFile {
			continue
		}
		sum, err := sha256File(r.filePath(d.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, subject{Name: d.Name(), SHA256: sum})
	}
	return files, nil
}

// writeChecksums writes the input of `sha256sum --check`.
func (r *release) writeChecksums() error {
	files, err := r.listReleaseFiles()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "%s  %s\n", f.SHA256, f.Name)
	}
	return os.WriteFile(r.filePath(checksumsFile), []byte(b.String()), 0o644) //nolint:gosec // public
}

func sha256File(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
