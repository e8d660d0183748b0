package plugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// findExecutable returns the path of a plugin. The error says what is wrong with the file and how to fix it.
func findExecutable(directory, cloudType string) (string, error) {
	if err := checkPluginDirectory(directory); err != nil {
		return "", err
	}
	path := filepath.Join(directory, cloudType)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("plugin %s does not exist: the directory has %s", path, describeDirectoryEntries(directory))
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return "", fmt.Errorf("plugin %s: %w", path, err)
	}
	if filepath.Dir(real) != filepath.Clean(directory) {
		if err := checkPluginDirectory(filepath.Dir(real)); err != nil {
			return "", fmt.Errorf("plugin %s: links to %s: %w", path, real, err)
		}
	}
	return real, checkPluginFile(real)
}

func checkPluginDirectory(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("plugin directory %s: does not exist", path)
	case err != nil:
		return fmt.Errorf("plugin directory %s: %w", path, err)
	case !info.IsDir():
		return fmt.Errorf("plugin directory %s: not a directory", path)
	case hasUnixModes() && info.Mode()&0o002 != 0:
		return fmt.Errorf("plugin directory %s: writable for others (mode %04o), who could replace a program that Slipway "+
			"runs: chmod o-w %s", path, info.Mode().Perm(), path)
	}
	return nil
}

func checkPluginFile(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("plugin %s: %w", path, err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("plugin %s: is a %s: want an executable file", path, describeNonRegularFile(info.Mode()))
	case hasUnixModes() && info.Mode()&0o002 != 0:
		return fmt.Errorf("plugin %s: writable for others (mode %04o), who could change what Slipway runs: chmod o-w %s",
			path, info.Mode().Perm(), path)
	case hasUnixModes() && info.Mode()&0o111 == 0:
		return fmt.Errorf("plugin %s: not executable (mode %04o): chmod +x %s", path, info.Mode().Perm(), path)
	}
	return nil
}

// hasUnixModes reports whether files have Unix permissions.
func hasUnixModes() bool { return runtime.GOOS != "windows" }

func describeNonRegularFile(mode fs.FileMode) string {
	if mode.IsDir() {
		return "directory"
	}
	return "device, pipe or socket"
}

// describeDirectoryEntries lists a directory for an error message.
func describeDirectoryEntries(directory string) string {
	const most = 10
	entries, err := os.ReadDir(directory)
	if err != nil || len(entries) == 0 {
		return "nothing"
	}
	var names []string
	for _, e := range entries[:min(most, len(entries))] {
		names = append(names, e.Name())
	}
	if len(entries) > most {
		names = append(names, fmt.Sprintf("and %d more", len(entries)-most))
	}
	return strings.Join(names, ", ")
}
