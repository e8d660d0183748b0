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

// subject is something that the release consists of, known by its SHA-256.
type subject struct {
	Name   string
	SHA256 string // hex
}

// files are the files right under the release's folder, in the order of their names. Folders have what was packed into
// them.
func (r *release) files() ([]subject, error) {
	dir, err := os.ReadDir(r.out)
	if err != nil {
		return nil, err
	}
	var files []subject
	for _, d := range dir {
		if d.IsDir() || d.Name() == checksumsFile {
			continue
		}
		sum, err := sha256File(r.path(d.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, subject{Name: d.Name(), SHA256: sum})
	}
	return files, nil
}

// writeChecksums writes what `sha256sum --check` reads.
func (r *release) writeChecksums() error {
	files, err := r.files()
	if err != nil {
		return err
	}
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "%s  %s\n", f.SHA256, f.Name)
	}
	return os.WriteFile(r.path(checksumsFile), []byte(b.String()), 0o644) //nolint:gosec // to be read by everybody
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
