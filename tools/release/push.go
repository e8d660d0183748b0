package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	intoto "github.com/in-toto/attestation/go/v1"
)

// push holds what is pushed, and where.
type push struct {
	dist, version, registry string
	overwrite               bool
	signer                  *signer // nil signs nothing
	provenance              *intoto.Statement
	options                 []remote.Option
	log                     *slog.Logger
}

// artifact is an image or a chart of the release.
type artifact struct {
	kind, name string
	sum        string // SHA-256 of the image or of the chart's package, as in the provenance
	tag        name.Tag
	content    interface {
		remote.Taggable
		Digest() (v1.Hash, error)
	}
}

// runPush pushes the images and charts of a release to its registry, and signs them if there is a key.
func runPush(ctx context.Context, args []string) error {
	var key string
	p := push{log: slog.Default(), options: []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("slipway-release"),
	}}
	flags := flag.NewFlagSet("release push", flag.ContinueOnError)
	flags.StringVar(&p.dist, "dist", "dist", "folder of the release")
	flags.StringVar(&p.version, "version", "", "version of the release, such as v0.1.0")
	flags.StringVar(&p.registry, "registry", "", "registry of the release, such as ghcr.io/acme/slipway")
	flags.StringVar(&key, "key", "", "private key in PEM to sign with: of cosign, or PKCS 8; empty signs nothing")
	flags.BoolVar(&p.overwrite, "overwrite", false, "replace tags that have another digest")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("argument %q: release push has only flags", flags.Arg(0))
	}
	if err := checkRegistry(p.registry); err != nil {
		return err
	}
	if key == "" {
		p.log.Warn("nothing is signed: pass a key with KEY=cosign.key")
	} else {
		var err error
		if p.signer, err = readSigner(key); err != nil {
			return err
		}
	}
	return p.run()
}

// run reads and checks everything before it writes to the registry.
func (p *push) run() error {
	files, err := verifyChecksums(p.dist)
	if err != nil {
		return err
	}
	images, err := p.readImages()
	if err != nil {
		return err
	}
	if p.provenance, err = readProvenance(p.dist, p.version); err != nil {
		return err
	}
	charts, err := p.readCharts(files)
	if err != nil {
		return err
	}
	artifacts := slices.Concat(images, charts) // a chart is published after its images
	if err := p.checkArtifacts(artifacts); err != nil {
		return err
	}
	var problems []error
	for _, a := range artifacts {
		problems = append(problems, a.wrap(p.checkTarget(a)))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	for _, a := range artifacts {
		if err := p.push(a); err != nil {
			return a.wrap(err)
		}
	}
	return p.signChecksums()
}

// checkArtifacts returns an error if an artifact is not of this release, or if two have the same tag.
func (p *push) checkArtifacts(artifacts []artifact) error {
	tags := map[string]bool{}
	for _, a := range artifacts {
		if tags[a.tag.String()] {
			return fmt.Errorf("%s: two artifacts of the release have this tag: make the release again", a.tag)
		}
		tags[a.tag.String()] = true
		if !slices.ContainsFunc(p.provenance.Subject, func(s *intoto.ResourceDescriptor) bool { return s.Digest["sha256"] == a.sum }) {
			return fmt.Errorf("%s %s: sha256 %s is not in %s: make the release again", a.kind, a.name, a.sum,
				filepath.Join(p.dist, provenanceFile(p.version)))
		}
	}
	return nil
}

// wrap returns the error with the names of the artifact and its tag, and with what to do. It returns nil for nil.
func (a artifact) wrap(err error) error {
	if err == nil {
		return nil
	}
	switch {
	case hasStatus(err, http.StatusUnauthorized, http.StatusForbidden):
		err = fmt.Errorf("%w (log in with docker login %s)", err, a.tag.RegistryStr())
	case hasStatus(err, http.StatusNotFound):
		err = fmt.Errorf("%w (create the repository %s first, if the registry creates none at a push)", err, a.tag.Context())
	}
	return fmt.Errorf("push %s %s to %s: %w", a.kind, a.name, a.tag, err)
}

// readImages returns the images of the release. It reads all layers and checks their digests.
func (p *push) readImages() ([]artifact, error) {
	list, err := os.ReadFile(filepath.Join(p.dist, imagesFile))
	if err != nil {
		return nil, err
	}
	var images []artifact
	for line := range strings.Lines(string(list)) {
		reference, digest, _ := strings.Cut(strings.TrimSpace(line), "@")
		command, version, _ := strings.Cut(reference, ":")
		if version != p.version {
			return nil, fmt.Errorf("version %q: %s has the release %s", p.version, p.dist, version)
		}
		index, err := readImageIndex(filepath.Join(p.dist, imagesFolder, command), digest)
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", command, err)
		}
		tag, err := name.NewTag(imageRepository(p.registry, command) + ":" + p.version)
		if err != nil {
			return nil, err
		}
		images = append(images, artifact{"image", command, strings.TrimPrefix(digest, "sha256:"), tag, index})
	}
	return images, nil
}

func readImageIndex(folder, digest string) (v1.ImageIndex, error) {
	hash, err := v1.NewHash(digest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", imagesFile, err)
	}
	path, err := layout.FromPath(folder)
	if err != nil {
		return nil, err
	}
	top, err := path.ImageIndex()
	if err != nil {
		return nil, err
	}
	index, err := top.ImageIndex(hash)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	if err := validate.Index(index); err != nil {
		return nil, fmt.Errorf("%s was changed after the release: make the release again: %w", folder, err)
	}
	return index, nil
}

// readCharts returns the charts among the files of the release. It refuses other packages in the folder.
func (p *push) readCharts(files []subject) ([]artifact, error) {
	packages, err := filepath.Glob(filepath.Join(p.dist, "*.tgz"))
	if err != nil {
		return nil, err
	}
	var charts []artifact
	for _, file := range packages {
		i := slices.IndexFunc(files, func(s subject) bool { return s.Name == filepath.Base(file) })
		if i < 0 {
			return nil, fmt.Errorf("%s is not in %s, so the release did not make it: remove it", file, checksumsFile)
		}
		image, metadata, err := newChartImage(file)
		if err != nil {
			return nil, err
		}
		if metadata.Name == cliCommand {
			if err := p.checkChartRegistry(file); err != nil {
				return nil, err
			}
		}
		tag, err := name.NewTag(chartRepository(p.registry, metadata.Name) + ":" + metadata.Version)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		charts = append(charts, artifact{"chart", metadata.Name, files[i].SHA256, tag, image})
	}
	return charts, nil
}

// checkChartRegistry returns an error if a chart installs images of another registry.
func (p *push) checkChartRegistry(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	values, err := chartFileContent(content, "values.yaml")
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	registry, err := findValue(values, "image.registry")
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if registry.Value != p.registry {
		return fmt.Errorf("registry %q: the chart %s has images of the registry %q: make the release with REGISTRY=%s",
			p.registry, file, registry.Value, p.registry)
	}
	return nil
}

// checkTarget returns an error if the registry does not permit a push to the repository of an artifact, or if its tag has
// another digest, unless tags may be replaced.
func (p *push) checkTarget(a artifact) error {
	if err := remote.CheckPushPermission(a.tag, authn.DefaultKeychain, remote.DefaultTransport); err != nil {
		return err
	}
	digest, err := a.content.Digest()
	if err != nil {
		return err
	}
	found, err := remote.Head(a.tag, p.options...)
	switch {
	case isAbsent(err):
		return nil
	case err != nil:
		return err
	case found.Digest != digest && !p.overwrite:
		return fmt.Errorf("the tag exists with digest %s, the release has %s: release a new version, or replace the tag with OVERWRITE=1",
			found.Digest, digest)
	}
	return nil
}

// isAbsent reports whether an error of a read says that a manifest does not exist. Some registries, such as Artifactory,
// answer 403 instead of 404. remote.Push accepts both, and checkTarget has checked the right to push. Without the right to
// read, a push fails at its first layer.
func isAbsent(err error) bool { return hasStatus(err, http.StatusNotFound, http.StatusForbidden) }

// hasStatus reports whether an error is a response of the registry with one of the HTTP status codes.
func hasStatus(err error, codes ...int) bool {
	var response *transport.Error
	return errors.As(err, &response) && slices.Contains(codes, response.StatusCode)
}

// push pushes an artifact by digest, then its signature and provenance, and then the tag. So an artifact with a tag always
// has its signature.
func (p *push) push(a artifact) error {
	hash, err := a.content.Digest()
	if err != nil {
		return err
	}
	digest := a.tag.Digest(hash.String())
	if err := remote.Push(digest, a.content, p.options...); err != nil {
		return err
	}
	if p.signer != nil {
		if err := p.signArtifact(digest); err != nil {
			return err
		}
	}
	// Unlike remote.Tag, it writes no tag that has the digest. Registries with immutable tags refuse this write.
	if err := remote.Push(a.tag, a.content, p.options...); err != nil {
		return err
	}
	p.log.Info("pushed", a.kind, a.tag.String(), "digest", hash.String(), "signed", p.signer != nil)
	return nil
}

// signArtifact pushes the signature and the provenance of an artifact.
func (p *push) signArtifact(digest name.Digest) error {
	signature, err := p.signer.signImage(digest)
	if err != nil {
		return err
	}
	statement, err := formatProvenance(p.provenance, digest)
	if err != nil {
		return err
	}
	attestation, err := p.signer.attest(statement, provenanceType)
	if err != nil {
		return err
	}
	for _, part := range []signaturePart{signature, attestation} {
		if err := p.pushSignature(digest, part); err != nil {
			return fmt.Errorf("%s: %w", part.suffix, err)
		}
	}
	return nil
}

// pushSignature adds a signature or attestation of a digest. It keeps the others in the registry.
func (p *push) pushSignature(digest name.Digest, part signaturePart) error {
	tag, err := signatureTag(digest, part.suffix)
	if err != nil {
		return err
	}
	image, err := remote.Image(tag, p.options...)
	if isAbsent(err) {
		image, err = emptySignatures(), nil
	}
	if err != nil {
		return err
	}
	image, added, err := appendPart(image, part)
	if err != nil || !added {
		return err
	}
	return remote.Write(tag, image, p.options...)
}

const checksumsSignatureFile = checksumsFile + ".sig"

// signChecksums writes the signature of the checksums, which cover all files, next to them.
func (p *push) signChecksums() error {
	if p.signer == nil {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(p.dist, checksumsFile))
	if err != nil {
		return err
	}
	signature, err := p.signer.sign(text)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(p.dist, checksumsSignatureFile), []byte(signature), 0o644) //nolint:gosec // public
}

// verifyChecksums returns the files in the checksums. If one of them has another checksum, it returns an error.
func verifyChecksums(dist string) ([]subject, error) {
	list, err := os.ReadFile(filepath.Join(dist, checksumsFile))
	if err != nil {
		return nil, fmt.Errorf("dist: make a release first: %w", err)
	}
	var files []subject
	for line := range strings.Lines(string(list)) {
		want, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		got, err := sha256File(filepath.Join(dist, file))
		if err != nil {
			return nil, err
		}
		if got != want {
			return nil, fmt.Errorf("%s was changed after the release: make the release again", filepath.Join(dist, file))
		}
		files = append(files, subject{Name: file, SHA256: got})
	}
	return files, nil
}
