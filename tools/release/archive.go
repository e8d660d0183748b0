package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"
)

// archiveEntry is a file or folder in an archive or in a layer of an image. Its name uses slashes. The name of a
// folder ends in a slash.
type archiveEntry struct {
	Name string
	Mode int64
	Data []byte
	Path string // source file if Data is empty
}

func (e archiveEntry) isDir() bool { return e.Name[len(e.Name)-1] == '/' }

func (e archiveEntry) open() (io.ReadCloser, int64, error) {
	if e.Path == "" {
		return io.NopCloser(bytes.NewReader(e.Data)), int64(len(e.Data)), nil
	}
	f, err := os.Open(e.Path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// writeTar writes the entries as a tar archive in the given order. All entries belong to root and have the same
// time.
func writeTar(w io.Writer, entries []archiveEntry, at time.Time) error {
	tw := tar.NewWriter(w)
	for _, e := range entries {
		h := &tar.Header{Name: e.Name, Mode: e.Mode, ModTime: at, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if e.isDir() {
			h.Typeflag = tar.TypeDir
			if err := tw.WriteHeader(h); err != nil {
				return err
			}
			continue
		}
		if err := e.copyTo(func(size int64) (io.Writer, error) { h.Size = size; return tw, tw.WriteHeader(h) }); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return tw.Close()
}

// writeZip writes the entries as a zip archive in the given order. All entries have the same time.
func writeZip(w io.Writer, entries []archiveEntry, at time.Time) error {
	zw := zip.NewWriter(w)
	for _, e := range entries {
		if e.isDir() {
			continue
		}
		h := &zip.FileHeader{Name: e.Name, Method: zip.Deflate, Modified: at}
		h.SetMode(os.FileMode(e.Mode))
		if err := e.copyTo(func(int64) (io.Writer, error) { return zw.CreateHeader(h) }); err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	return zw.Close()
}

// copyTo calls begin with the size of the entry's content, and copies the content to the writer that begin returns.
func (e archiveEntry) copyTo(begin func(size int64) (io.Writer, error)) error {
	r, size, err := e.open()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	w, err := begin(size)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return err
}

// writeArchive writes the entries to an archive file. The extension of the file determines the format: .zip, .tar.gz
// or .tgz.
func writeArchive(file string, entries []archiveEntry, at time.Time) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if filepath.Ext(file) == ".zip" {
		return writeZip(f, entries, at)
	}
	gz := gzip.NewWriter(f)
	if err := writeTar(gz, entries, at); err != nil {
		return err
	}
	return gz.Close()
}

// archiveName returns the file name of the archive that has a product for one target platform.
func (r *release) archiveName(product string, t target) string {
	ext := ".tar.gz"
	if t.OS == "windows" {
		ext = ".zip"
	}
	return r.fileName(product, t.fileSuffix()) + ext
}

// kubectlPlugin is the file name that kubectl requires for the plugin slipway. The plugin has its own archive,
// because krew does not unpack links.
const kubectlPlugin = "kubectl-slipway"

// writeArchives writes two archives for each target platform. One has all programs and documents, and the other only
// the kubectl plugin.
func (r *release) writeArchives(_ context.Context, binaries []executable) error {
	docs, err := listTree(r.filePath(docsFolder), "", 0o644)
	if err != nil {
		return err
	}
	license := archiveEntry{Name: "LICENSE", Mode: 0o644, Path: filepath.Join(r.source.Root, "LICENSE")}
	for _, t := range r.targets {
		all := []archiveEntry{license}
		plugin := []archiveEntry{license}
		for _, b := range binaries {
			if b.Target != t {
				continue
			}
			all = append(all, archiveEntry{Name: t.exeName(b.Command), Mode: 0o755, Path: b.Path})
			if b.Command == cliCommand {
				plugin = append(plugin, archiveEntry{Name: t.exeName(kubectlPlugin), Mode: 0o755, Path: b.Path})
			}
		}
		for product, entries := range map[string][]archiveEntry{cliCommand: append(all, docs...), kubectlPlugin: plugin} {
			r.log.Info("packing", "product", product, "target", t.String())
			if err := writeArchive(r.filePath(r.archiveName(product, t)), entries, r.source.Time); err != nil {
				return err
			}
		}
	}
	return nil
}

// listTree returns all files under a folder, sorted by name. Each name begins with prefix. It follows symbolic
// links, because the charts share a library through links.
func listTree(folder, prefix string, mode int64) ([]archiveEntry, error) {
	files, err := os.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	var entries []archiveEntry
	for _, f := range files {
		name, file := path.Join(prefix, f.Name()), filepath.Join(folder, f.Name())
		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}
		if info.IsDir() {
			below, err := listTree(file, name, mode)
			if err != nil {
				return nil, err
			}
			entries = append(entries, below...)
			continue
		}
		m := mode
		if info.Mode()&0o100 != 0 {
			m = 0o755
		}
		entries = append(entries, archiveEntry{Name: name, Mode: m, Path: file})
	}
	return entries, nil
}
