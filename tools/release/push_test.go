package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/dsse"
	"github.com/sigstore/sigstore/pkg/signature/payload"
)

// testRegistry is a registry on loopback that counts the requests that write.
type testRegistry struct {
	host    string
	writes  atomic.Int64
	handler http.Handler
	// Atomic, because remote.CheckPushPermission cancels its upload in the background, also while a test sets the answer.
	answer atomic.Pointer[testAnswer]
}

// testAnswer answers a request instead of the registry, or returns false.
type testAnswer func(http.ResponseWriter, *http.Request) bool

func (r *testRegistry) setAnswer(answer testAnswer) { r.answer.Store(&answer) }

func answerNothing(http.ResponseWriter, *http.Request) bool { return false }

func newTestRegistry(t *testing.T) *testRegistry {
	t.Helper()
	r := &testRegistry{handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	r.setAnswer(answerNothing)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if (*r.answer.Load())(w, request) {
			return
		}
		if request.Method == http.MethodPatch || request.Method == http.MethodPut { // a new upload is empty
			r.writes.Add(1)
		}
		r.handler.ServeHTTP(w, request)
	}))
	t.Cleanup(server.Close)
	r.host = strings.TrimPrefix(server.URL, "http://")
	return r
}

// hasManifest reports whether the registry has the manifest that a request names.
func (r *testRegistry) hasManifest(request *http.Request) bool {
	head, response := request.Clone(request.Context()), httptest.NewRecorder()
	head.Method, head.Body = http.MethodHead, http.NoBody
	r.handler.ServeHTTP(response, head)
	return response.Code == http.StatusOK
}

// denyPath returns an answer that forbids everything below a path.
func denyPath(path string) testAnswer {
	return func(w http.ResponseWriter, request *http.Request) bool {
		denied := strings.Contains(request.URL.Path, path)
		if denied {
			w.WriteHeader(http.StatusForbidden)
		}
		return denied
	}
}

// writeTestKey writes a new key in PKCS 8, and returns its file, the key and its public half.
func writeTestKey(t *testing.T) (string, *ecdsa.PrivateKey, signature.Verifier) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := cryptoutils.MarshalPrivateKeyToPEM(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	writeTestFile(t, file, string(text))
	verifier, err := signature.LoadVerifier(key.Public(), crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	return file, key, verifier
}

// encryptTestKey writes a key as cosign does.
func encryptTestKey(t *testing.T, key *ecdsa.PrivateKey, password string) string {
	t.Helper()
	der, err := cryptoutils.MarshalPrivateKeyToEncryptedDER(key, cryptoutils.StaticPasswordFunc([]byte(password)))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "cosign.key")
	writeTestFile(t, file, string(cryptoutils.PEMEncode(cryptoutils.EncryptedSigstorePrivateKeyPEMType, der)))
	return file
}

// pushed is what a push writes in the registry: the repository and the tag.
var pushed = [][2]string{
	{"slipway", "v0.1.0"},
	{"slipway-agent", "v0.1.0"},
	{"charts/slipway", "0.1.0"},
	{"charts/aks-node-termination-handler", "2.1.0"},
	{"charts/aws-node-termination-handler", "1.1.0"},
}

func TestPushedReleaseIsSignedAndRepeatable(t *testing.T) {
	server := newTestRegistry(t)
	home := server.host + "/acme/slipway"
	dir := newTestProject(t)
	dist := writeTestDist(t, dir, home)
	keyFile, key, verifier := writeTestKey(t)
	_, _, otherVerifier := writeTestKey(t)
	args := []string{"push", "-dist=" + dist, "-version=v0.1.0", "-registry=" + home, "-key=" + keyFile}
	if err := run(t.Context(), args); err != nil {
		t.Fatal(err)
	}

	t.Run("pushes valid images and charts with signature and provenance", func(t *testing.T) {
		for _, p := range pushed {
			tag := home + "/" + p[0] + ":" + p[1]
			if err := verifyArtifact(t.Context(), tag, verifier); err != nil {
				t.Errorf("%s: %v", tag, err)
			}
		}
		index, err := remote.Index(parseTag(t, home+"/slipway-agent:v0.1.0"))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Index(index); err != nil {
			t.Error(err)
		}
	})
	t.Run("pushes the chart as Helm does", func(t *testing.T) {
		image, err := remote.Image(parseTag(t, home+"/charts/slipway:0.1.0"))
		if err != nil {
			t.Fatal(err)
		}
		manifest, err := image.Manifest()
		if err != nil {
			t.Fatal(err)
		}
		types := []string{string(manifest.MediaType), string(manifest.Config.MediaType), string(manifest.Layers[0].MediaType)}
		want := []string{
			"application/vnd.oci.image.manifest.v1+json", "application/vnd.cncf.helm.config.v1+json",
			"application/vnd.cncf.helm.chart.content.v1.tar+gzip",
		}
		if diff := cmp.Diff(want, types); diff != "" {
			t.Error(diff)
		}
		layer, err := image.LayerByDigest(manifest.Layers[0].Digest)
		if err != nil {
			t.Fatal(err)
		}
		content, err := layer.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(content)
		if err != nil || !bytes.Equal(got, readTestFile(t, filepath.Join(dist, "slipway-0.1.0.tgz"))) {
			t.Errorf("the layer is not the package: %v", err)
		}
		config, err := image.RawConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if want := `{"apiVersion":"v2","appVersion":"v0.1.0","name":"slipway","version":"0.1.0"}`; string(config) != want {
			t.Errorf("config %s", config)
		}
	})
	t.Run("signs the checksums", func(t *testing.T) {
		text := readTestFile(t, filepath.Join(dist, checksumsFile))
		raw, err := base64.StdEncoding.DecodeString(string(readTestFile(t, filepath.Join(dist, checksumsSignatureFile))))
		if err != nil {
			t.Fatal(err)
		}
		if err := verifier.VerifySignature(bytes.NewReader(raw), bytes.NewReader(text)); err != nil {
			t.Error(err)
		}
		if err := verifier.VerifySignature(bytes.NewReader(raw), strings.NewReader(strings.ToUpper(string(text)))); err == nil {
			t.Error("the signature is valid for other checksums")
		}
	})
	t.Run("changes nothing the second time, with cosign's form of the key", func(t *testing.T) {
		before := registryDigests(t, home)
		encrypted := encryptTestKey(t, key, "open sesame")
		t.Setenv(signaturePasswordEnv, "wrong")
		if err := run(t.Context(), append(args, "-key="+encrypted)); err == nil || !strings.Contains(err.Error(), "key "+encrypted+": ") {
			t.Errorf("wrong password: got %v", err)
		}
		t.Setenv(signaturePasswordEnv, "open sesame")
		if err := run(t.Context(), append(args, "-key="+encrypted)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, registryDigests(t, home)); diff != "" {
			t.Error(diff)
		}
	})
	t.Run("keeps the signatures of others", func(t *testing.T) {
		second, _, secondVerifier := writeTestKey(t)
		if err := run(t.Context(), append(args, "-key="+second)); err != nil {
			t.Fatal(err)
		}
		for _, v := range []signature.Verifier{verifier, secondVerifier} {
			if err := verifyArtifact(t.Context(), home+"/slipway-agent:v0.1.0", v); err != nil {
				t.Error(err)
			}
		}
		if err := verifyArtifact(t.Context(), home+"/slipway-agent:v0.1.0", otherVerifier); err == nil {
			t.Error("a key that signed nothing verifies")
		}
	})
	t.Run("a changed layer is not signed, and not replaced unless told to", func(t *testing.T) {
		tag := parseTag(t, home+"/charts/slipway:0.1.0")
		image, err := remote.Image(tag)
		if err != nil {
			t.Fatal(err)
		}
		changed, err := mutate.AppendLayers(image, static.NewLayer([]byte("changed"), chartLayerType))
		if err != nil {
			t.Fatal(err)
		}
		if err := remote.Write(tag, changed); err != nil {
			t.Fatal(err)
		}
		if err := verifyArtifact(t.Context(), tag.String(), verifier); err == nil || !strings.Contains(err.Error(), "MANIFEST_UNKNOWN") {
			t.Errorf("without signature: got %v", err)
		}
		// The signature and the provenance of the old digest do not count.
		for _, suffix := range []string{signatureSuffix, attestationSuffix} {
			copyTag(t, image, changed, tag, suffix)
		}
		if err := verifyArtifact(t.Context(), tag.String(), verifier); err == nil || !strings.Contains(err.Error(), "is signed, not") {
			t.Errorf("with the signature of another digest: got %v", err)
		}

		before := registryDigests(t, home)
		err = run(t.Context(), args)
		for _, want := range []string{"push chart slipway to " + tag.String() + ": the tag exists with digest sha256:", "OVERWRITE=1"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("want %q, got %v", want, err)
			}
		}
		if diff := cmp.Diff(before, registryDigests(t, home)); diff != "" {
			t.Error(diff)
		}
		if err := run(t.Context(), append(args, "-overwrite")); err != nil {
			t.Fatal(err)
		}
		if err := verifyArtifact(t.Context(), tag.String(), verifier); err != nil {
			t.Error(err)
		}
	})
	t.Run("a changed payload is not signed", func(t *testing.T) {
		for _, suffix := range []string{signatureSuffix, attestationSuffix} {
			tag := parseTag(t, home+"/slipway:v0.1.0")
			replacePayload(t, tag, suffix)
			if err := verifyArtifact(t.Context(), tag.String(), verifier); err == nil || !strings.Contains(err.Error(), "invalid signature") {
				t.Errorf("%s: got %v", suffix, err)
			}
			if err := run(t.Context(), args); err != nil { // adds the right one again
				t.Fatal(err)
			}
			if err := verifyArtifact(t.Context(), tag.String(), verifier); err != nil {
				t.Errorf("%s: %v", suffix, err)
			}
		}
	})
	t.Run("writes nothing if something is wrong", func(t *testing.T) {
		before := server.writes.Load()
		for name, c := range map[string]struct {
			args []string
			want string
		}{
			"other version":  {[]string{"-version=v0.2.0"}, `version "v0.2.0": ` + dist + " has the release v0.1.0"},
			"other registry": {[]string{"-registry=" + server.host + "/other"}, `has images of the registry "` + home + `"`},
			"no registry":    {[]string{"-registry="}, `registry "": must be a host and a path`},
			"no release":     {[]string{"-dist=" + t.TempDir()}, "make a release first"},
			"no key":         {[]string{"-key=" + dir}, "key: read "},
			"no key in file": {[]string{"-key=" + filepath.Join(dir, "LICENSE")}, "LICENSE: "},
			"an argument":    {[]string{"now"}, `argument "now"`},
		} {
			if err := run(t.Context(), append(args[:len(args):len(args)], c.args...)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: want %q, got %v", name, c.want, err)
			}
		}
		if n := server.writes.Load() - before; n != 0 {
			t.Errorf("%d writes", n)
		}
	})
	t.Run("names what the registry denies", func(t *testing.T) {
		server.setAnswer(denyPath("slipway-agent"))
		defer server.setAnswer(answerNothing)
		err := run(t.Context(), args[:len(args)-1])
		for _, want := range []string{"push image slipway-agent to " + home + "/slipway-agent:v0.1.0: ", "docker login " + server.host} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("want %q, got %v", want, err)
			}
		}
	})
	t.Run("refuses a release that was changed", func(t *testing.T) {
		blobs, err := filepath.Glob(filepath.Join(dist, imagesFolder, "slipway", "blobs", "sha256", "*"))
		if err != nil || len(blobs) == 0 {
			t.Fatal(blobs, err)
		}
		largest := ""
		for size := int64(0); len(blobs) > 0; blobs = blobs[1:] {
			if info, err := os.Stat(blobs[0]); err == nil && info.Size() > size {
				largest, size = blobs[0], info.Size()
			}
		}
		layer := readTestFile(t, largest)
		layer[len(layer)/2] ^= 1
		writeTestFile(t, largest, string(layer))
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), "was changed after the release") {
			t.Errorf("changed layer: got %v", err)
		}
		writeTestFile(t, filepath.Join(dist, imagesFile), "slipway:v0.1.0@sha256:"+strings.Repeat("0", 64)+"\n")
		if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), imagesFile+" was changed after the release") {
			t.Errorf("changed file: got %v", err)
		}
	})
}

// TestRepeatedPushToImmutableTagsSucceeds pushes to a registry that refuses every write to an existing tag, even of the same
// digest, as ECR with immutable tags does.
func TestRepeatedPushToImmutableTagsSucceeds(t *testing.T) {
	server := newTestRegistry(t)
	home := server.host + "/acme/slipway"
	dist := writeTestDist(t, newTestProject(t), home)
	keyFile, _, verifier := writeTestKey(t)
	args := []string{"push", "-dist=" + dist, "-version=v0.1.0", "-registry=" + home, "-key=" + keyFile}
	immutable := func(w http.ResponseWriter, request *http.Request) bool {
		refused := request.Method == http.MethodPut && strings.Contains(request.URL.Path, "/manifests/") && server.hasManifest(request)
		if refused {
			w.WriteHeader(http.StatusBadRequest)
		}
		return refused
	}
	server.setAnswer(func(w http.ResponseWriter, request *http.Request) bool {
		failed := request.Method == http.MethodPut && strings.HasSuffix(request.URL.Path, "/charts/slipway/manifests/0.1.0")
		if failed {
			w.WriteHeader(http.StatusBadRequest)
		}
		return failed || immutable(w, request)
	})
	if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), "push chart slipway to ") {
		t.Fatalf("the registry refuses the tag of a chart: got %v", err)
	}
	server.setAnswer(immutable)
	for range 2 {
		if err := run(t.Context(), args); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range pushed {
		if err := verifyArtifact(t.Context(), home+"/"+p[0]+":"+p[1], verifier); err != nil {
			t.Errorf("%s: %v", p[0], err)
		}
	}
}

// TestPushChecksAllRepositoriesFirst pushes to a registry that lacks two repositories, as ECR without them does.
func TestPushChecksAllRepositoriesFirst(t *testing.T) {
	server := newTestRegistry(t)
	home := server.host + "/acme/slipway"
	dist := writeTestDist(t, newTestProject(t), home)
	missing := []string{"slipway-agent", "charts/slipway"}
	server.setAnswer(func(w http.ResponseWriter, request *http.Request) bool {
		for _, repository := range missing {
			if strings.HasPrefix(request.URL.Path, "/v2/acme/slipway/"+repository+"/") {
				w.WriteHeader(http.StatusNotFound)
				return true
			}
		}
		return false
	})
	err := run(t.Context(), []string{"push", "-dist=" + dist, "-version=v0.1.0", "-registry=" + home})
	for _, repository := range missing {
		if want := "create the repository " + home + "/" + repository + " first"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if n := server.writes.Load(); n != 0 {
		t.Errorf("%d writes", n)
	}
}

// TestPushToRegistryThatForbidsMissingTags pushes to a registry that answers 403 instead of 404, as Artifactory does.
func TestPushToRegistryThatForbidsMissingTags(t *testing.T) {
	server := newTestRegistry(t)
	home := server.host + "/acme/slipway"
	dist := writeTestDist(t, newTestProject(t), home)
	keyFile, _, verifier := writeTestKey(t)
	server.setAnswer(func(w http.ResponseWriter, request *http.Request) bool {
		reads := request.Method == http.MethodGet || request.Method == http.MethodHead
		forbidden := reads && strings.Contains(request.URL.Path, "/manifests/") && !server.hasManifest(request)
		if forbidden {
			w.WriteHeader(http.StatusForbidden)
		}
		return forbidden
	})
	args := []string{"push", "-dist=" + dist, "-version=v0.1.0", "-registry=" + home, "-key=" + keyFile}
	if err := run(t.Context(), args); err != nil {
		t.Fatal(err)
	}
	for _, p := range pushed {
		if err := verifyArtifact(t.Context(), home+"/"+p[0]+":"+p[1], verifier); err != nil {
			t.Errorf("%s: %v", p[0], err)
		}
	}

	// Without the right to read, all tags look absent. The push must replace none.
	before := server.writes.Load()
	server.setAnswer(func(w http.ResponseWriter, request *http.Request) bool {
		forbidden := request.URL.Path != "/v2/" && (request.Method == http.MethodGet || request.Method == http.MethodHead)
		if forbidden {
			w.WriteHeader(http.StatusForbidden)
		}
		return forbidden
	})
	if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), "docker login "+server.host) {
		t.Errorf("without the right to read: got %v", err)
	}
	if n := server.writes.Load() - before; n != 0 {
		t.Errorf("%d writes without the right to read", n)
	}
}

func TestPushRefusesWhatTheReleaseDidNotMake(t *testing.T) {
	server := newTestRegistry(t)
	home := server.host + "/acme/slipway"
	dist := writeTestDist(t, newTestProject(t), home)
	args := []string{"push", "-dist=" + dist, "-version=v0.1.0", "-registry=" + home}
	// addChecksums lists the current files, as a release that wrote them would.
	addChecksums := func(t *testing.T) {
		t.Helper()
		if err := (&release{out: dist}).writeChecksums(); err != nil {
			t.Fatal(err)
		}
	}
	chart := filepath.Join(dist, "slipway-0.1.0.tgz")
	extra := filepath.Join(dist, "slipway-0.1.0-copy.tgz")
	provenance := filepath.Join(dist, provenanceFile("v0.1.0"))
	for name, c := range map[string]struct {
		file   string
		change func(content []byte) []byte // of the chart or the provenance
		listed bool                        // in the checksums
		want   string
	}{
		"an unlisted chart":     {extra, nil, false, extra + " is not in checksums.txt, so the release did not make it: remove it"},
		"two charts of one tag": {extra, nil, true, home + "/charts/slipway:0.1.0: two artifacts of the release have this tag"},
		"a chart without provenance": {
			chart, func(b []byte) []byte { return append(b, 0) }, true, "is not in " + provenance + ": make the release again",
		},
		"a modified work tree": {
			provenance, func(b []byte) []byte {
				return bytes.Replace(b, []byte(`"sourceModified": false`), []byte(`"sourceModified": true`), 1)
			},
			true, provenance + ": the release is of a work tree that differs from its commit: commit the changes",
		},
		"a provenance without its source": {
			provenance, func(b []byte) []byte { return bytes.Replace(b, []byte("sourceModified"), []byte("other"), 1) },
			true, provenance + ": the release is of a work tree that differs from its commit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change == nil {
				writeTestFile(t, c.file, string(readTestFile(t, chart)))
				defer func() { _ = os.Remove(c.file) }()
			} else {
				before := readTestFile(t, c.file)
				writeTestFile(t, c.file, string(c.change(bytes.Clone(before))))
				defer writeTestFile(t, c.file, string(before))
			}
			if c.listed {
				addChecksums(t)
			}
			if err := run(t.Context(), args); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("want %q, got %v", c.want, err)
			}
		})
		addChecksums(t) // of the files as they were
	}
	if n := server.writes.Load(); n != 0 {
		t.Errorf("%d writes", n)
	}
	if err := run(t.Context(), args); err != nil {
		t.Errorf("the release itself: %v", err)
	}
}

// writeTestDist writes what is pushed of a release: images with texts as binaries, charts, provenance and checksums.
func writeTestDist(t *testing.T, dir, registry string) string {
	t.Helper()
	r := newTestRelease(t, cliCommand, agentCommand)
	r.source.Root, r.registry = dir, registry
	binaries := writeTestBinaries(t, r)
	if err := r.writeImages(t.Context(), binaries); err != nil {
		t.Fatal(err)
	}
	if err := r.writeCharts(t.Context(), binaries); err != nil {
		t.Fatal(err)
	}
	writeTestProvenance(t, r)
	return r.out
}

// writeTestProvenance writes the provenance and the checksums of the files in the folder of a release.
func writeTestProvenance(t *testing.T, r *release) {
	t.Helper()
	files, err := r.listReleaseFiles()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.writeProvenance(append(files, r.images...)); err != nil {
		t.Fatal(err)
	}
	if err := r.writeChecksums(); err != nil {
		t.Fatal(err)
	}
}

func parseTag(t *testing.T, s string) name.Tag {
	t.Helper()
	tag, err := name.NewTag(s)
	if err != nil {
		t.Fatal(err)
	}
	return tag
}

// registryDigests returns the digest of every tag in the repositories of the release.
func registryDigests(t *testing.T, home string) map[string]string {
	t.Helper()
	digests := map[string]string{}
	for _, p := range pushed {
		repository, err := name.NewRepository(home + "/" + p[0])
		if err != nil {
			t.Fatal(err)
		}
		tags, err := remote.List(repository)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range tags {
			d, err := remote.Head(repository.Tag(tag))
			if err != nil {
				t.Fatal(err)
			}
			digests[repository.Tag(tag).String()] = d.Digest.String()
		}
	}
	if len(digests) < 3*len(pushed) {
		t.Fatalf("only %v", digests)
	}
	return digests
}

// copyTag gives an image the signatures of another image.
func copyTag(t *testing.T, from, to v1.Image, in name.Tag, suffix string) {
	t.Helper()
	var tags []name.Tag
	for _, image := range []v1.Image{from, to} {
		digest, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		tag, err := signatureTag(in.Digest(digest.String()), suffix)
		if err != nil {
			t.Fatal(err)
		}
		tags = append(tags, tag)
	}
	signatures, err := remote.Image(tags[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tags[1], signatures); err != nil {
		t.Fatal(err)
	}
}

// replacePayload changes the content of all signatures or attestations of a tag, but not the signatures themselves.
func replacePayload(t *testing.T, tag name.Tag, suffix string) {
	t.Helper()
	head, err := remote.Head(tag)
	if err != nil {
		t.Fatal(err)
	}
	place, err := signatureTag(tag.Digest(head.Digest.String()), suffix)
	if err != nil {
		t.Fatal(err)
	}
	image, err := remote.Image(place)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	changed, err := mutate.AppendLayers(emptySignatures())
	if err != nil {
		t.Fatal(err)
	}
	for i, layer := range layers {
		text, err := readLayer(layer)
		if err != nil {
			t.Fatal(err)
		}
		replaced := bytes.Replace(text, []byte(`"optional":null`), []byte(`"optional":{"approved":"yes"}`), 1)
		if suffix == attestationSuffix {
			var envelope map[string]any
			if err := json.Unmarshal(text, &envelope); err != nil {
				t.Fatal(err)
			}
			statement, err := base64.StdEncoding.DecodeString(envelope["payload"].(string))
			if err != nil {
				t.Fatal(err)
			}
			envelope["payload"] = base64.StdEncoding.EncodeToString(bytes.Replace(statement, []byte("v0.1.0"), []byte("v0.1.1"), 1))
			if replaced, err = json.Marshal(envelope); err != nil {
				t.Fatal(err)
			}
		}
		if bytes.Equal(text, replaced) {
			t.Fatalf("nothing to replace in %s", text)
		}
		changed, err = mutate.Append(changed, mutate.Addendum{
			Layer: static.NewLayer(replaced, manifest.Layers[i].MediaType), Annotations: manifest.Layers[i].Annotations,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := remote.Write(place, changed); err != nil {
		t.Fatal(err)
	}
}

func readLayer(layer v1.Layer) ([]byte, error) {
	content, err := layer.Compressed()
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	return io.ReadAll(content)
}

// verifyArtifact does what cosign verify and cosign verify-attestation do with a key, with sigstore's libraries: one signature
// and one attestation must be of the key and of the digest that the tag has.
func verifyArtifact(ctx context.Context, tag string, verifier signature.Verifier) error {
	ref, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	head, err := remote.Head(ref)
	if err != nil {
		return err
	}
	for suffix, verify := range map[string]func(context.Context, []byte, string, signature.Verifier) (string, error){
		"sig": verifySignature, "att": verifyAttestation,
	} {
		image, err := remote.Image(ref.Context().Tag("sha256-" + head.Digest.Hex + "." + suffix))
		if err != nil {
			return err
		}
		manifest, err := image.Manifest()
		if err != nil {
			return err
		}
		failures := errors.New("no layer of the key")
		for _, descriptor := range manifest.Layers {
			layer, err := image.LayerByDigest(descriptor.Digest)
			if err != nil {
				return err
			}
			text, err := readLayer(layer)
			if err != nil {
				return err
			}
			signed, err := verify(ctx, text, descriptor.Annotations["dev.cosignproject.cosign/signature"], verifier)
			if err == nil && signed != head.Digest.String() {
				err = fmt.Errorf("%s is signed, not %s", signed, head.Digest)
			}
			if err == nil {
				failures = nil
				break
			}
			failures = errors.Join(failures, err)
		}
		if failures != nil {
			return fmt.Errorf("%s: %w", suffix, failures)
		}
	}
	return nil
}

// verifySignature returns the digest that a signature is for.
func verifySignature(_ context.Context, text []byte, encoded string, verifier signature.Verifier) (string, error) {
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", err
	}
	if err := verifier.VerifySignature(bytes.NewReader(raw), bytes.NewReader(text)); err != nil {
		return "", err
	}
	var p payload.SimpleContainerImage
	err = json.Unmarshal(text, &p)
	return p.Critical.Image.DockerManifestDigest, err
}

// verifyAttestation returns the digest that a statement is for.
func verifyAttestation(_ context.Context, text []byte, _ string, verifier signature.Verifier) (string, error) {
	if err := dsse.WrapVerifier(verifier).VerifySignature(bytes.NewReader(text), nil); err != nil {
		return "", fmt.Errorf("invalid signature: %w", err)
	}
	var envelope struct{ PayloadType, Payload string }
	if err := json.Unmarshal(text, &envelope); err != nil {
		return "", err
	}
	statement, err := base64.StdEncoding.DecodeString(envelope.Payload)
	if err != nil {
		return "", err
	}
	var s provenanceStatement
	if err := json.Unmarshal(statement, &s); err != nil {
		return "", err
	}
	if envelope.PayloadType != "application/vnd.in-toto+json" || s.PredicateType != "https://slsa.dev/provenance/v1" || len(s.Subject) != 1 {
		return "", fmt.Errorf("statement %s", statement)
	}
	return "sha256:" + s.Subject[0].Digest["sha256"], nil
}
