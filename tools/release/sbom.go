package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
	"golang.org/x/mod/module"
)

const (
	noAssertion = "NOASSERTION"
	stdlib      = "stdlib" // Go's standard library as a package of an SBOM
)

// writeSBOMs writes a software bill of materials for each binary, as SPDX 2.3 in JSON.
func (r *release) writeSBOMs(ctx context.Context, binaries []executable) error {
	l, err := newLicenceCache(ctx, r.source.Root)
	if err != nil {
		return err
	}
	for _, b := range binaries {
		doc, err := r.newSBOM(b, l)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		if err := spdxjson.Write(doc, &text, spdxjson.Indent("  ")); err != nil {
			return fmt.Errorf("SBOM of %s: %w", b.Path, err)
		}
		file := r.filePath(r.fileName(b.Command, b.Target.fileSuffix()) + ".spdx.json")
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil { //nolint:gosec // public
			return err
		}
	}
	return nil
}

// newSBOM returns a document that lists the standard library and the modules that are linked into a binary. It reads
// them from the binary. go.mod would list more, such as modules for tests and for other platforms.
func (r *release) newSBOM(b executable, l *licenceCache) (*v2_3.Document, error) {
	info, err := buildinfo.ReadFile(b.Path)
	if err != nil {
		return nil, fmt.Errorf("SBOM: %w", err)
	}
	sum, err := sha256File(b.Path)
	if err != nil {
		return nil, err
	}
	name := r.fileName(b.Command, b.Target.fileSuffix())
	program := &v2_3.Package{
		PackageName:               b.Command,
		PackageSPDXIdentifier:     "Package-binary",
		PackageVersion:            r.source.Version,
		PackageFileName:           filepath.Base(b.Path),
		PackageSupplier:           &common.Supplier{SupplierType: "Organization", Supplier: "Slipway"},
		PackageDownloadLocation:   r.repositoryURL(),
		PackageChecksums:          []common.Checksum{{Algorithm: common.SHA256, Value: sum}},
		PackageSourceInfo:         fmt.Sprintf("built from git commit %s by %s for %s", r.source.Commit, info.GoVersion, b.Target),
		PackageLicenseConcluded:   "Apache-2.0",
		PackageLicenseDeclared:    "Apache-2.0",
		PackageCopyrightText:      noAssertion,
		PrimaryPackagePurpose:     "APPLICATION",
		IsFilesAnalyzedTagPresent: true,
	}
	doc := &v2_3.Document{
		SPDXVersion:       v2_3.Version,
		DataLicense:       v2_3.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      name,
		DocumentNamespace: fmt.Sprintf("%s/spdx/%s-%s", r.repositoryURL(), name, sum),
		CreationInfo: &v2_3.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "slipway-release-" + r.source.Version}},
			Created:  r.source.Time.Format("2006-01-02T15:04:05Z"),
			CreatorComment: "The packages are the modules linked into the binary. Their licences are detected from the text of the " +
				"files in the root of each module. created is the time of the commit.",
		},
		Packages: []*v2_3.Package{program},
		Relationships: []*v2_3.Relationship{{
			RefA: common.MakeDocElementID("", "DOCUMENT"), RefB: common.MakeDocElementID("", "Package-binary"),
			Relationship: common.TypeRelationshipDescribe,
		}},
	}
	packages, err := sbomPackages(info, r.source.Version, l)
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		doc.Packages = append(doc.Packages, p)
		doc.Relationships = append(doc.Relationships, &v2_3.Relationship{
			RefA: common.MakeDocElementID("", "Package-binary"), RefB: common.MakeDocElementID("", string(p.PackageSPDXIdentifier)),
			Relationship: common.TypeRelationshipContains,
		})
	}
	return doc, nil
}

// sbomPackages returns the packages of an SBOM. They are the binary's own module with the released version, the
// standard library, and the dependencies. A replaced dependency is listed as its replacement.
func sbomPackages(info *buildinfo.BuildInfo, version string, l *licenceCache) ([]*v2_3.Package, error) {
	own := info.Main
	own.Version, own.Sum = version, ""
	list := []debug.Module{own, {Path: stdlib, Version: strings.TrimPrefix(strings.Fields(info.GoVersion)[0], "go")}}
	for _, m := range info.Deps {
		for m.Replace != nil {
			m = m.Replace
		}
		list = append(list, *m)
	}
	packages := make([]*v2_3.Package, 0, len(list))
	for i, m := range list {
		licence, err := sbomLicence(m, own.Path, l)
		if err != nil {
			return nil, err
		}
		p := &v2_3.Package{
			PackageName:               m.Path,
			PackageSPDXIdentifier:     common.ElementID(fmt.Sprintf("Package-module-%d", i)),
			PackageVersion:            m.Version,
			PackageDownloadLocation:   downloadLocation(m),
			PackageLicenseConcluded:   licence,
			PackageLicenseDeclared:    licence,
			PackageCopyrightText:      noAssertion,
			PrimaryPackagePurpose:     "LIBRARY",
			IsFilesAnalyzedTagPresent: true,
			PackageExternalReferences: []*v2_3.PackageExternalReference{{
				Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: packageURL(m),
			}},
		}
		if m.Sum != "" {
			p.PackageSourceInfo = "go.sum " + m.Sum
		}
		packages = append(packages, p)
	}
	return packages, nil
}

// sbomLicence returns the licence of a module. For Slipway's own module and the standard library it is fixed. For
// other modules it comes from their files.
func sbomLicence(m debug.Module, own string, l *licenceCache) (string, error) {
	switch m.Path {
	case own:
		return "Apache-2.0", nil
	case stdlib:
		return "BSD-3-Clause", nil
	}
	return l.licenceOfModule(m.Path, m.Version)
}

// packageURL returns the package URL of a module (https://github.com/package-url/purl-spec). The path is in lower
// case, and each + in the version is escaped.
func packageURL(m debug.Module) string {
	return "pkg:golang/" + strings.ToLower(m.Path) + "@" + strings.ReplaceAll(m.Version, "+", "%2B")
}

// downloadLocation returns the address of a dependency at the Go module proxy. For Slipway's own module and the
// standard library it returns NOASSERTION.
func downloadLocation(m debug.Module) string {
	if m.Sum == "" {
		return noAssertion
	}
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return noAssertion
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return noAssertion
	}
	return fmt.Sprintf("https://proxy.golang.org/%s/@v/%s.zip", path, version)
}
