package manager_test

import (
	"net/http"
	"strings"
	"testing"
)

// What becomes of a ghost takes 45 minutes at the least, and is tested where time is not real. Here it is seen that the
// manager as it is shipped looks for them in Azure, and for nothing else.
func TestAManagerLooksForGhostsInAzure(t *testing.T) {
	b := newPool(t, "strays", 1, "")
	const series = `slipway_strays{cloud="azure",kind=`
	var seen string
	b.manage().await("/metrics", "tells of ghosts", func(status int, body string) bool {
		seen = body
		return status == http.StatusOK && strings.Contains(body, series+`"Ghost",state="proven"} 0`)
	})
	if strings.Contains(seen, series+`"Orphan"`) {
		t.Errorf("it tells of orphans too, which nobody can know of there")
	}
}
