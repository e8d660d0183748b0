package kubeapi

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestEveryPageOfAListIsRead(t *testing.T) {
	var queries []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		queries = append(queries, r.URL.RawQuery)
		page := map[string]string{
			"":   podPage("10", "p2", "a", "b"),
			"p2": podPage("10", "p3"),
			"p3": podPage("10", "", "c"),
		}[r.URL.Query().Get("continue")]
		_, _ = io.WriteString(w, page)
	})
	nodes, err := c.ListNodes(t.Context(), "x=y")
	must.NoError(t, err)
	check.Equal(t, []string{"a", "b", "c"}, namesOf(nodes))
	want := []string{
		"labelSelector=x%3Dy&limit=200", "continue=p2&labelSelector=x%3Dy&limit=200",
		"continue=p3&labelSelector=x%3Dy&limit=200",
	}
	check.Equal(t, want, queries)
}

func namesOf(nodes []Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}

func TestI7FailedPageFailsTheList(t *testing.T) {
	second := map[string]http.HandlerFunc{
		"expired":           answer(410, status(410, "Expired", "The provided continue parameter is too old")),
		"broken connection": brokenStream(podPage("10", "", "c")[:60]),
		"half a page":       answer(200, podPage("10", "", "c")[:60]),
		"HTML":              answer(200, "<html>log in</html>"),
	}
	for name, h := range second {
		t.Run(name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Get("continue") != "" {
					h(w, r)
					return
				}
				_, _ = io.WriteString(w, podPage("10", "p2", "a", "b"))
			})
			nodes, err := c.ListNodes(t.Context(), "")
			if err == nil || nodes != nil {
				t.Errorf("got %v and %v, want no nodes and an error", namesOf(nodes), err)
			}
		})
	}
}

func TestI7TruncatedBodyIsNeverAShorterList(t *testing.T) {
	whole := `{"kind":"NodeList","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}`
	for cut := range len(whole) {
		var got []Node
		meta, err := decodeList(strings.NewReader(whole[:cut]), func(n Node) { got = append(got, n) })
		if err == nil || meta != (listMeta{}) {
			t.Fatalf("%s: decoded as a list of %v", whole[:cut], namesOf(got))
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v, want an unexpected EOF", whole[:cut], err)
		}
	}
	object := `{"metadata":{"name":"a"},"spec":{"taints":[{"key":"k","effect":"NoSchedule"}]}}`
	for cut := range len(object) {
		var n Node
		if err := decodeObject(strings.NewReader(object[:cut]), &n); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: %v", object[:cut], err)
		}
	}
}

func TestI7ResponseWithoutListOrObjectIsRefused(t *testing.T) {
	for _, body := range []string{
		`{}`, `null`, `[]`, `"ok"`, `7`, `{"items":[]}`, `{"metadata":{},"items":[]}`, `<html>`, `{"metadata":{"name":"x"}}`,
		`{"metadata":{"resourceVersion":"1"},"items":{}}`, `{"metadata":{"resourceVersion":"1"},"items":"none"}`,
		`{"metadata":{"resourceVersion":"1"},"items":[7]}`, `{"metadata":{"resourceVersion":1},"items":[]}`,
		`{"metadata":null,"items":[]}`, status(200, "", "ok"),
	} {
		if _, err := decodeList(strings.NewReader(body), func(Node) {}); err == nil {
			t.Errorf("%s is decoded as a list", body)
		}
	}
	for _, body := range []string{`{}`, `null`, `[]`, `{"metadata":{}}`, `{"metadata":{"name":7}}`, status(200, "", "ok")} {
		if _, err := serve(t, answer(200, body)).GetNode(t.Context(), "n1"); err == nil {
			t.Errorf("%s is decoded as a node", body)
		}
	}
}

func TestListMembersMayHaveAnyOrder(t *testing.T) {
	for _, body := range []string{
		`{"items":[{"metadata":{"name":"a"}}],"metadata":{"resourceVersion":"7","continue":"c"},"kind":"NodeList"}`,
		` {"kind":"NodeList","x":{"items":[1,[2]]},"metadata":{"continue":"c","resourceVersion":"7"},"items":[{"metadata":{"name":"a"}}]}`,
	} {
		var got []Node
		meta, err := decodeList(strings.NewReader(body), func(n Node) { got = append(got, n) })
		if err != nil || meta != (listMeta{"7", "c"}) || !cmp.Equal(namesOf(got), []string{"a"}) {
			t.Errorf("%s: %v %v %v", body, meta, namesOf(got), err)
		}
	}
}

func TestTooLargeResponseIsRefused(t *testing.T) {
	padding := []byte(`"},"padding":"` + strings.Repeat("x", 1<<20) + `"},`)
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"7"},"items":[`)
		for i := range 17 {
			_, _ = fmt.Fprintf(w, `{"metadata":{"name":"n%d`, i)
			_, _ = w.Write(padding)
		}
		_, _ = io.WriteString(w, `{"metadata":{"name":"last"}}]}`)
	})
	c.timeout = 10 * DefaultTimeout // the race detector reads 16 MiB slowly on a busy machine
	_, err := c.ListNodes(t.Context(), "")
	if err == nil || !strings.Contains(err.Error(), "GET /api/v1/nodes: ") || !strings.Contains(err.Error(), "larger than 16 MiB") {
		t.Errorf("got %v", err)
	}
}

// BenchmarkListOfAFullNode measures one page of 110 pods of 8 KiB, like a full node's.
func BenchmarkListOfAFullNode(b *testing.B) {
	var page strings.Builder
	page.WriteString(`{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":[`)
	for i := range 110 {
		if i > 0 {
			page.WriteByte(',')
		}
		fmt.Fprintf(&page, `{"metadata":{"name":"web-%d","namespace":"shop","managedFields":[{"fieldsV1":{"f:x":%q}}]}}`,
			i, strings.Repeat("y", 8<<10))
	}
	page.WriteString(`]}`)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if _, err := decodeList(strings.NewReader(page.String()), func(Pod) { n++ }); err != nil || n != 110 {
			b.Fatal(strconv.Itoa(n), err)
		}
	}
}
