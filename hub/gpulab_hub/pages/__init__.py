"""The lab's pages inside the hub: pure view models, thin handlers, templates and static files.

The templates override the hub's by name and extend them where that is enough (`templates/page.html` is the
hub's own). They need two things in their context: `gpulab` (`gpulab_hub.pages.facts`), and on the spawn page
the form that `gpulab_hub.pages.spawn_form` renders.
"""
